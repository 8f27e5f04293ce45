"""Bind mounts for a run's container. By default, a directory has the same path in the container as on the node."""

from dataclasses import dataclass


@dataclass(frozen=True)
class BindMount:
    """A bind mount: a directory or file on the node that the container can access.

    Attributes:
        target: Path in the container; empty for the same path as on the node.
    """

    source: str
    target: str = ""
    read_only: bool = False

    def option(self) -> str:
        """Return the value of the `--mount` option of `docker run`, which Docker parses as comma-separated values."""
        fields = ["type=bind", f"source={self.source}", f"target={self.target or self.source}"]
        fields += ["readonly"] if self.read_only else []
        return ",".join(_quoted(field) for field in fields)


def _quoted(field: str) -> str:
    if not any(mark in field for mark in ',"\n'):
        return field
    doubled = field.replace('"', '""')
    return f'"{doubled}"'
