"""Containers on a node as values: the arguments of `docker run`."""
