"""Snapshots of what a cloud offers: types, zones, prices, images and quotas, applied over the bundled catalog."""
