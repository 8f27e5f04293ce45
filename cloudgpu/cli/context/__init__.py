"""The composition root: chooses the implementation behind each interface that a use case needs."""
