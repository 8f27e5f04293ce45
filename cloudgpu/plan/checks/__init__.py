"""Preflight: every way in which a run would fail or surprise, found before anything is spent. Pure.

`rule` says what throws a single candidate out, `check` what looks at the plan as a whole, `registry` holds all checks
in their order. Listed for people in `docs/reference/checks.md`, which is generated from them.
"""
