"""Thin commands: parse, one app call, render. `wiring.py` is the only composition root."""
