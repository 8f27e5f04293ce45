"""Snapshots of a cloud's types, zones, prices, images and quotas, which update the bundled catalog."""
