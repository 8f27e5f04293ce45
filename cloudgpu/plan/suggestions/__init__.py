"""Suggest changes that make a rejected plan acceptable."""
