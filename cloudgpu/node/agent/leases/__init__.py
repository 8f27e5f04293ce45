"""Leases on a shared host's GPUs, and the cleanup when a lease expires or is released."""
