"""Programs that run on a node: the agent, a single file without dependencies, and the bootstrap script of user data."""
