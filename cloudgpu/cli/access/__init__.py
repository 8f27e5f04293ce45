"""SSH access to nodes for a command: authorize the caller, and log in."""
