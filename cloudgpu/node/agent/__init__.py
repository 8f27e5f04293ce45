"""The agent that runs on each node.

The agent needs only Python 3.8 or later and the standard library, and is copied as one file (see `node.payload`). It
imports nothing else from the project, and its modules import each other with relative imports, because the package has
a different name on the node. `main` lists the verbs. Each verb except `probe` reads one JSON object from standard
input, and all verbs write JSON lines to standard output. The last line of a failed call is
`{"error": ..., "hint": ..., "code": ...}`.
"""
