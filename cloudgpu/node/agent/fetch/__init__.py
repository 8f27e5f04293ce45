"""Dataset downloads: parallel and verified, from their source or from another node."""
