"""A problem in a recipe, identified by the path of its field."""

from dataclasses import dataclass

FieldPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One problem of one field. An empty path means the recipe as a whole."""

    path: FieldPath
    message: str

    @property
    def text(self) -> str:
        """`resources.nodes: expected a whole number`."""
        return f"{dotted(self.path)}: {self.message}" if self.path else self.message


def dotted(path: FieldPath) -> str:
    """Format a field path: `data[0].from` for `("data", 0, "from")`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
