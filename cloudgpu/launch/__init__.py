"""Launchers: compute every rank's command and environment from a recipe and an inventory. No I/O.

A launch here is that of ranks, not of instances. The inventory of the nodes is here too.
"""
