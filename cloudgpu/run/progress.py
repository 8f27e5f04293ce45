"""Progress events of a run, which the CLI renders."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Note:
    """A progress message. `node` is the node index, or None if the message applies to all nodes."""

    text: str
    node: int | None = None


@dataclass(frozen=True)
class RankLine:
    """A line of a rank's output."""

    rank: int
    text: str


@dataclass(frozen=True)
class MetricValue:
    """A metric value parsed from a rank's output."""

    name: str
    value: float
    unit: str


Progress = Note | RankLine | MetricValue
Report = Callable[[Progress], None]
