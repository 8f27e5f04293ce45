"""The append-only record of everything that costs money. Simulated money is never added to real money."""
