"""Execute a run on an inventory: check node health, stage files, start the ranks, follow the logs, collect outputs."""
