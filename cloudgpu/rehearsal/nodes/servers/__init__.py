"""What a node answers: SSH, instance metadata, and commands that the machine has no hardware for."""
