"""The container images of a run, and the requests for its containers."""
