"""The backends on which clusters run: one package per backend, plus the modules that all backends share."""
