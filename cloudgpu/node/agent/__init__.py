"""The agent that runs on each node. Standard library only, Python 3.8+; copied as one file (see `node.payload`).

It imports nothing else from the project, and its modules use relative imports only, because the package has a
different name on the node. Each verb (listed in `main`) reads one JSON object from standard input and writes JSON lines
to standard output; the last line of a failed call is `{"error": ..., "hint": ..., "code": ...}`.
"""
