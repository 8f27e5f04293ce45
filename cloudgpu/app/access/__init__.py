"""Reach the nodes of a cluster: SSH, exec, tunnels."""
