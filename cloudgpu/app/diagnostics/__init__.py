"""`doctor`: check the prerequisites of a run."""
