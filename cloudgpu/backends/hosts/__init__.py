"""The backend for self-managed hosts, on which a cluster consists of leases on existing machines."""
