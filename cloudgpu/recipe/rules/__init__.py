"""Validation rules across the fields of a recipe, which the schema cannot express."""
