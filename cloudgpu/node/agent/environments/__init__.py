"""Python environments with a recipe's requirements installed."""
