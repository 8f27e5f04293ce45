"""A run on one node: its ranks, and the protocol by which the nodes of a gang start and end together."""
