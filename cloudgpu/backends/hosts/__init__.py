"""The backend for self-managed hosts: clusters are leases on existing machines."""
