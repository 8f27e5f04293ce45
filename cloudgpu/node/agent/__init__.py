"""What runs on a node. Standard library only, Python 3.8 and later; travels as one file (see `cloudgpu.node.payload`).

Imports nothing of the rest of the project, and its modules import each other by relative names only, because on the
node the package has another name. Verbs: `probe env fetch start status follow stop`. Each reads one JSON object from
standard input and writes JSON lines to standard output; a failure ends with the line `{"error": ..., "hint": ...}`.
"""
