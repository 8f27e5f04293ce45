"""Provide the container images of a run, and build the requests that start its containers."""
