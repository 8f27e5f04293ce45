"""The backend for self-managed hosts, where a cluster consists of leases on existing machines."""
