"""The sections of a recipe, one module each, with the documentation of every field."""
