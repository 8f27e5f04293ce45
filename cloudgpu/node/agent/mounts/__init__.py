"""Datasets mounted as file systems."""
