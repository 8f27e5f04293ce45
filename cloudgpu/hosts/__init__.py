"""Hosts of one's own: the inventory file, which of its hosts fit a recipe, and what is known of each."""
