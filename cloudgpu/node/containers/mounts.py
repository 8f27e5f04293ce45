"""What of a node is seen in a run's container: each directory at its own path, so that a command means the same."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mount:
    """One directory or file of the node.

    Attributes:
        target: Where it is seen; empty for where it is.
    """

    source: str
    target: str = ""
    read_only: bool = False

    def option(self) -> str:
        """As `docker run --mount` reads it: a line of comma-separated values, quoted where one holds a comma."""
        fields = ["type=bind", f"source={self.source}", f"target={self.target or self.source}"]
        fields += ["readonly"] if self.read_only else []
        return ",".join(_quoted(one) for one in fields)


def _quoted(field: str) -> str:
    if not any(mark in field for mark in ',"\n'):
        return field
    doubled = field.replace('"', '""')
    return f'"{doubled}"'
