"""The composition root: choose the implementation of each interface that a use case needs."""
