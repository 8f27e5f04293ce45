"""Build the arguments of `docker run` for the containers of a node."""
