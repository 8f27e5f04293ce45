"""Candidates for a launch in failover order, and the reasons why other options are excluded."""
