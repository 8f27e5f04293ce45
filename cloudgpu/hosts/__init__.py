"""Self-managed hosts: the inventory file, updates of the file with scan results, and GPU usage."""
