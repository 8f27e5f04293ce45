"""EC2 behavior that moto lacks or gets wrong, one module per subject."""
