"""Preflight checks: report why a run would fail or surprise the user, before it costs anything.

A rule (`rule`) excludes single candidates, a check (`check`) examines the plan as a whole, and `registry` lists all
checks in order. `docs/reference/checks.md` is generated from the rules and checks.
"""
