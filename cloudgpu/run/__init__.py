"""Execute a run on an inventory: connect, check health, stage, launch, follow, collect."""
