"""Figures read from the ranks' lines, by the recipe's patterns."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from cloudgpu.recipe.schema import Metric
from cloudgpu.run.series import Series, over_ranks, that_count


@dataclass(frozen=True)
class Measured:
    """What one metric came to, beside what the recipe compares it with."""

    name: str
    value: float | None
    metric: Metric
    counted: int = 0
    """How many values it was taken from."""
    printed: int = 0
    """How many there were in all, with those that do not count."""

    @property
    def share(self) -> float | None:
        """Value as a share of the reference; None without either, or where it is no number."""
        reference = self.metric.reference
        if self.value is None or not math.isfinite(self.value) or reference is None or reference.value == 0:
            return None
        return self.value / reference.value

    @property
    def missed(self) -> bool:
        """Whether it had to reach a figure and did not; what is not a number has reached nothing."""
        if self.metric.at_least is None:
            return False
        return self.value is None or not math.isfinite(self.value) or self.value < self.metric.at_least


_LONGEST_LINE = 16384
"""Characters of a line that are looked at: figures stand at its beginning, and patterns may be slow."""


class Metrics:
    """Collects the values of every pattern, rank by rank."""

    def __init__(self, wanted: Mapping[str, Metric]) -> None:
        self._wanted = dict(wanted)
        self._patterns = {name: re.compile(metric.pattern) for name, metric in wanted.items()}
        self._series: dict[str, dict[int, Series]] = defaultdict(dict)

    def read(self, line: str, rank: int = 0) -> list[tuple[str, float, str]]:
        """The figures of one line of a rank, as it printed them: name, value, unit."""
        found = []
        for name, pattern in self._patterns.items():
            value = _number(pattern.search(line[:_LONGEST_LINE]))
            if value is not None:
                self._of(name, rank).add(value)
                found.append((name, value, self._wanted[name].unit))
        return found

    def measured(self) -> tuple[Measured, ...]:
        """Every metric of the recipe, with what it came to or none."""
        return tuple(self._measured(name, metric) for name, metric in self._wanted.items())

    def _measured(self, name: str, metric: Metric) -> Measured:
        by_rank = self._series[name]
        speaking = that_count(metric, by_rank)
        counted = sum(one.counted for one in speaking)
        printed = sum(one.printed for one in by_rank.values())
        return Measured(name, over_ranks(metric, speaking), metric, counted, printed)

    def _of(self, name: str, rank: int) -> Series:
        return self._series[name].setdefault(rank, Series(self._wanted[name]))


def _number(match: re.Match[str] | None) -> float | None:
    text = None if match is None else match["value"]
    if text is None:
        return None
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
