"""Launchers, one module each: they compute the command and environment of every rank."""
