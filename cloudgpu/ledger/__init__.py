"""The append-only record of everything that costs money. Simulated and real costs are never added up."""
