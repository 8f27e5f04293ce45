"""The simulated endpoint: HTTP server, signatures, control calls and request routing."""
