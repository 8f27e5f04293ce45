"""The only door to SSH: connections, pinned host keys, commands as values, fan-out, transfer."""
