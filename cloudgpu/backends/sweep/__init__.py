"""What a sweep finds and what it would delete, independently of the cloud."""
