"""What runs on a node: the agent, one stdlib-only file, and the bootstrap script of user data."""
