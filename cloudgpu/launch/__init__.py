"""Launchers, pure: recipe + inventory -> the exact command and environment of every rank."""
