"""Bake machine images."""
