"""Connect to the nodes of a cluster: SSH, exec and tunnels."""
