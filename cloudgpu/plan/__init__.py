"""Pure planning functions from a recipe, the catalog and quotes to a plan. They use no clock, network or files."""
