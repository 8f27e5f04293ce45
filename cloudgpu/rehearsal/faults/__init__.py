"""Fault injection: scripts, the library of named ones, and what is in force."""
