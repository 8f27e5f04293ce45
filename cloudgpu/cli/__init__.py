"""The command line: each command parses its arguments, calls one use case of `app` and renders the result."""
