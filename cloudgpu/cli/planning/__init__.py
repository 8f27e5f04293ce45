"""The plan of a command, created or read from a file, with the requester and the secrets that it needs."""
