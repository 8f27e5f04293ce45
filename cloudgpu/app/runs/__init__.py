"""Execute a run on a cluster, follow it, attach to it and finish it."""
