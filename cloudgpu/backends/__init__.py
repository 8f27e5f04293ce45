"""Backends, on which clusters run: one folder per backend, next to the modules that all backends share."""
