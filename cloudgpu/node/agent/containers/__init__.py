"""Docker: images, their transfer between nodes, and the container that a node's ranks run in."""
