"""Turn a recipe, the catalog and quotes into a plan, without reading the clock, the network or the user's files."""
