"""Mounts of a run's container. Each directory has the same path as on the node, so that commands work in both."""

from dataclasses import dataclass


@dataclass(frozen=True)
class BindMount:
    """A directory or file of the node.

    Attributes:
        target: Path in the container; empty for the same path.
    """

    source: str
    target: str = ""
    read_only: bool = False

    def option(self) -> str:
        """Return the value of `docker run --mount`: comma-separated, with quotes around values that contain a comma."""
        fields = ["type=bind", f"source={self.source}", f"target={self.target or self.source}"]
        fields += ["readonly"] if self.read_only else []
        return ",".join(_quoted(field) for field in fields)


def _quoted(field: str) -> str:
    if not any(mark in field for mark in ',"\n'):
        return field
    doubled = field.replace('"', '""')
    return f'"{doubled}"'
