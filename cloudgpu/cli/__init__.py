"""Thin commands: parse, one app call, render. `context/wiring.py` is the only composition root."""
