"""Containers on a node, as values: what `docker run` is given, and why."""
