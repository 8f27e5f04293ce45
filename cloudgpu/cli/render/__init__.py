"""Render results as text and as JSON documents."""
