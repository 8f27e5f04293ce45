"""The backend for self-managed hosts: clusters are leases on machines that exist already."""
