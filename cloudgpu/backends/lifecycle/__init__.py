"""What backends share about clusters: launch requests, leases, reuse, extension, deletion and their results."""
