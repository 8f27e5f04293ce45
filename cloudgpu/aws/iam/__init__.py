"""Permissions: what cloudgpu needs, the policies that grant it, and how to find out what the caller has."""
