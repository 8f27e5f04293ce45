"""The version of the ledger's format, apart from the tables so that it can be read without a database library."""

VERSION = 5
"""Version of the tables in `schema.py`. A ledger with a newer version is rejected."""
