"""Launchers: compute every rank's command and environment from a recipe and an inventory. No I/O."""
