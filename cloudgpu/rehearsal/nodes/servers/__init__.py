"""Servers of a node: SSH, instance metadata, and simulated commands."""
