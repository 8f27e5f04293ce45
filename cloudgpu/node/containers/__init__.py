"""Build the `docker run` arguments for a node's containers."""
