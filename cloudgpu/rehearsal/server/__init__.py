"""The simulated endpoint: HTTP server, signature verification, control API and request routing."""
