"""Servers of a node (SSH, instance metadata, simulated commands), and the programs inside the node that use them."""
