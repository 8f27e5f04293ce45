"""Rules that AWS enforces and moto does not, and APIs that moto lacks, by service; their records and snapshots."""
