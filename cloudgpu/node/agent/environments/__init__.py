"""Python environments that have what a recipe requires."""
