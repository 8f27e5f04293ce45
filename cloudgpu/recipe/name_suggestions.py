"""Suggest the nearest valid name for an unknown name."""

import difflib
from collections.abc import Iterable


def nearest_name(name: str, choices: Iterable[str]) -> str | None:
    """Return the choice most similar to `name`; None if none is similar."""
    by_folded = {choice.lower(): choice for choice in choices}
    matches = difflib.get_close_matches(name.lower(), by_folded, n=1, cutoff=0.6)
    return by_folded[matches[0]] if matches else None


def suggestion(name: str, choices: Iterable[str]) -> str:
    """Return `; did you mean "nodes"?` to append to a message; empty if no choice is similar."""
    match = nearest_name(name, choices)
    return "" if match is None else f'; did you mean "{match}"?'
