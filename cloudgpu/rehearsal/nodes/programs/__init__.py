"""Programs that run inside a node: single files that use only the standard library and are not imported."""
