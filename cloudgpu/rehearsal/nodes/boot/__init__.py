"""A node's first boot: base image, user data, console."""
