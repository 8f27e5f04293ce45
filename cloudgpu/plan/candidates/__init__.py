"""Candidates for a launch in failover order, and the reasons why others are excluded."""
