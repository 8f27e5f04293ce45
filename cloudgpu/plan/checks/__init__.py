"""Preflight checks: before a run costs anything, report why it would fail or surprise the user.

A rule (`rule`) excludes an instance type, a region or a zone. A check (`check`) examines the plan as a whole.
The planner collects the checks of each module. `docs/reference/checks.md` is generated from the rules and checks.
"""
