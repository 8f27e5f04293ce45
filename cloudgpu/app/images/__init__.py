"""Bake and delete machine images."""
