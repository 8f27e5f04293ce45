"""A problem in a recipe, identified by the path of its field."""

from dataclasses import dataclass

FieldPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """A problem of one field, or of the recipe as a whole if the path is empty."""

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
