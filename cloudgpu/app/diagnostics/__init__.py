"""`doctor`: check that everything a run needs is there."""
