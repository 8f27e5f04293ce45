"""Find every tagged resource in the account and delete the leftovers."""
