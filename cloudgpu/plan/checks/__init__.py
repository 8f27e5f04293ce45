"""Preflight checks: before a run costs anything, report why it would fail or surprise the user.

A rule (`rule`) excludes single candidates, a check (`check`) examines the plan as a whole, and `registry` lists all
checks in order. `docs/reference/checks.md` is generated from the rules and checks.
"""
