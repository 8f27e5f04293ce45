"""Recipe files: the schema, loading and validation. Knows nothing about where or how a recipe runs."""
