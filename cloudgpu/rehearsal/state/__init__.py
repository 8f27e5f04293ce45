"""What the simulated AWS remembers: records beside moto's, snapshots on disk, and how they are written."""
