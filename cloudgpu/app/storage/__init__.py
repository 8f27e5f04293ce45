"""Create, list and delete storage that outlives clusters."""
