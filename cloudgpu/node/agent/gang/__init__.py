"""The part of a run on one node: its ranks, and the protocol with which a gang's nodes start and stop together."""
