"""Docker images, their transfer between nodes, and the container of a node's ranks."""
