"""Carrying out a run on an inventory: connect, gate, stage, launch, follow, collect."""
