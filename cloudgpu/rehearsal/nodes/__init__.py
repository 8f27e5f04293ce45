"""The node host: a background process that simulates instances, each with its own SSH server."""
