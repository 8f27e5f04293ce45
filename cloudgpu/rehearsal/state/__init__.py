"""State of the simulated AWS: records that moto lacks, and snapshots on disk."""
