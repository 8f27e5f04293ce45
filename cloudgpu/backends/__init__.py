"""Backends, on which clusters run: one package per backend, next to the modules that all backends share."""
