"""The simulated endpoint: HTTP, signatures, control calls and the way of a request to its service."""
