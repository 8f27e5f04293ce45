"""Self-managed hosts: the inventory file, host selection for a recipe, and scan results."""
