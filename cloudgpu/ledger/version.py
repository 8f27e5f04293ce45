"""The version of the ledger's format, in its own module so that importing it does not import a database library."""

VERSION = 6
"""Version of the tables in `schema.py`. A ledger with a newer version is rejected."""
