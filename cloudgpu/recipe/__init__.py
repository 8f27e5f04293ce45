"""Recipe files: the schema, loading and validation, independent of where and how a recipe runs."""
