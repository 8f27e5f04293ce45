"""Fault injection: fault scripts, the built-in library, and the faults that are active on a server."""
