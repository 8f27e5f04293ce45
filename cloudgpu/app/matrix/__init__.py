"""Run every combination of a matrix in one cluster."""
