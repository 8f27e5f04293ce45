"""Datasets, checkpoints and outputs: transfers to and from the nodes."""
