"""Programs that run inside a node: single files, standard library only, imported by nothing."""
