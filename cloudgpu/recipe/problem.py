"""A problem in a recipe, identified by the path of its field, and the nearest valid name for an unknown one."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

FieldPath = tuple[str | int, ...]


def nearest_name(name: str, choices: Iterable[str]) -> str | None:
    """Return the choice most similar to `name`; None if none is similar."""
    by_folded = {choice.lower(): choice for choice in choices}
    matches = difflib.get_close_matches(name.lower(), by_folded, n=1, cutoff=0.6)
    return by_folded[matches[0]] if matches else None


def suggestion(name: str, choices: Iterable[str]) -> str:
    """Return `; did you mean "nodes"?` to append to a message; empty if no choice is similar."""
    match = nearest_name(name, choices)
    return "" if match is None else f'; did you mean "{match}"?'


@dataclass(frozen=True)
class Problem:
    """A problem in one field or, if the path is empty, in the recipe as a whole."""

    path: FieldPath
    message: str

    @property
    def text(self) -> str:
        """Message with the field's path, such as `resources.nodes: expected a whole number`."""
        return f"{format_path(self.path)}: {self.message}" if self.path else self.message


def format_path(path: FieldPath) -> str:
    """Format a field path, such as `data[0].from` for `("data", 0, "from")`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
