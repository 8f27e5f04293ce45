"""Leases of a shared host's GPUs, and the cleanup when one ends."""
