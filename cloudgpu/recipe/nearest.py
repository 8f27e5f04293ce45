"""The nearest valid name to one that does not exist, for messages."""

import difflib
from collections.abc import Iterable


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The choice that `name` was most likely meant to be; None when nothing is near."""
    by_folded = {choice.lower(): choice for choice in choices}
    found = difflib.get_close_matches(name.lower(), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def suggestion(name: str, choices: Iterable[str]) -> str:
    """`; did you mean "nodes"?`, ready to be appended to a message; empty when nothing is near."""
    found = nearest(name, choices)
    return "" if found is None else f'; did you mean "{found}"?'
