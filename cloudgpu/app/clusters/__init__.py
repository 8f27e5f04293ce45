"""Create, reuse, extend and delete clusters."""
