"""Prices, quotas, and the zones that offer each instance type."""
