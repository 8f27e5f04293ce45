"""Mutation testing: change the code at random and report the changes that the nearest tests do not notice."""
