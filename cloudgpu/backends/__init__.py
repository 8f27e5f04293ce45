"""Backends: the places where clusters run. One folder per backend; the modules beside them are shared by all."""
