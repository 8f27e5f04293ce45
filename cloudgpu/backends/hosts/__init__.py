"""The backend for self-managed hosts. A cluster consists of leases on the GPUs of existing machines."""
