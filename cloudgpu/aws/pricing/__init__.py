"""Prices, quotas and the zones that offer an instance type."""
