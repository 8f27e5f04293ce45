"""Validation rules that the schema cannot express, for example because they involve several fields."""
