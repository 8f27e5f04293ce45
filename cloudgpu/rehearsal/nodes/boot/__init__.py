"""The boot of a node: base image, user data and console."""
