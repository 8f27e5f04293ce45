"""Programs that run on a node: the agent (one file without dependencies) and the bootstrap script in the user data."""
