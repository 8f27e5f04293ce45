"""What a run reports while it goes on: values, never text for a terminal."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Note:
    """A sentence about what is happening or awaited; `node` is its index, None for the whole gang."""

    text: str
    node: int | None = None


@dataclass(frozen=True)
class RankLine:
    """One line that a rank wrote."""

    rank: int
    text: str


@dataclass(frozen=True)
class MetricValue:
    """One figure read from a rank's line."""

    name: str
    value: float
    unit: str


Progress = Note | RankLine | MetricValue
Report = Callable[[Progress], None]
