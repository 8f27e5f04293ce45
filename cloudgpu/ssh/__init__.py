"""SSH access to nodes: connections, pinned host keys, commands, parallel execution and file transfer.

No other package uses paramiko.
"""
