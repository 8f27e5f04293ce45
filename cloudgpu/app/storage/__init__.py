"""Validate the options of `storage create`."""
