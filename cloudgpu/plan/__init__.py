"""Turn a recipe, the catalog and quotes into a plan. All functions are pure: no clock, network or files."""
