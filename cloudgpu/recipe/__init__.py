"""Recipes: what a run is, as pure data. Nothing here knows where or how it is carried out."""
