"""Load a recipe file: parse it with line numbers, apply `--set`, validate, and report every problem."""
