"""The node host: a background process that simulates instances, each with an SSH server of its own."""
