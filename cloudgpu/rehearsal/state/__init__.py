"""State of the simulated AWS: records in addition to moto's, and snapshots on disk."""
