"""Rules that AWS enforces and moto does not, and APIs that moto lacks, one module per topic."""
