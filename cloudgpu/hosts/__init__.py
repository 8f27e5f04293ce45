"""Self-managed hosts: the inventory file, updates to it from scan results, and GPU usage."""
