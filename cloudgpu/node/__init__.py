"""Programs that run on a node, and commands for it.

The agent is one file without dependencies. The bootstrap script is part of the user data. The other modules build the
commands that mount data, start containers and extend the expiry.
"""
