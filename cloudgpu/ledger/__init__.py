"""The append-only record of everything that costs money. Simulated costs are never added to real costs."""
