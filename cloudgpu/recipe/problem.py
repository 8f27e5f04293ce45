"""A problem in a recipe, identified by the path of its field."""

from dataclasses import dataclass

FieldPath = tuple[str | int, ...]


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
