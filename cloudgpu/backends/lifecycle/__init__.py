"""Cluster lifecycle code that backends share: launch requests, leases, reuse, extension, deletion and their results."""
