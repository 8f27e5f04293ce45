"""A run on one node: its ranks, and the protocol with which the nodes of a gang start and stop together."""
