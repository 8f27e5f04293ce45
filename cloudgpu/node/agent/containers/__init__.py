"""Docker images, their transfer between nodes, and the container that runs a node's ranks."""
