"""Parse metrics from rank output with the recipe's patterns."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from cloudgpu.recipe.schema import Metric
from cloudgpu.run.metric_series import Series, aggregate_over_ranks, series_to_aggregate


@dataclass(frozen=True)
class Measured:
    """A metric's result, and its definition in the recipe."""

    name: str
    value: float | None
    metric: Metric
    counted: int = 0
    """Number of values that the result is computed from."""
    printed: int = 0
    """Number of values printed, including warm-up values and others that are not used."""

    @property
    def share(self) -> float | None:
        """Value divided by the reference. None if either is missing, the value is not finite, or the reference is 0."""
        reference = self.metric.reference
        if self.value is None or not math.isfinite(self.value) or reference is None or reference.value == 0:
            return None
        return self.value / reference.value

    @property
    def missed_target(self) -> bool:
        """True if the metric has a target (`at_least`) and did not reach it. NaN never reaches a target."""
        if self.metric.at_least is None:
            return False
        return self.value is None or not math.isfinite(self.value) or self.value < self.metric.at_least


_LONGEST_LINE = 16384
"""Maximum number of characters searched per line, because patterns may be slow."""


class Metrics:
    """The values of every metric, by rank."""

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        self._metrics = dict(metrics)
        self._patterns = {name: re.compile(metric.pattern) for name, metric in metrics.items()}
        self._series: dict[str, dict[int, Series]] = defaultdict(dict)

    def read(self, line: str, rank: int = 0) -> list[tuple[str, float, str]]:
        """Parse one line of a rank's output and return the (name, value, unit) of each metric in it."""
        values = []
        for name, pattern in self._patterns.items():
            value = _number(pattern.search(line[:_LONGEST_LINE]))
            if value is not None:
                self._series_of(name, rank).add(value)
                values.append((name, value, self._metrics[name].unit))
        return values

    def measured(self) -> tuple[Measured, ...]:
        """Return the result of every metric in the recipe."""
        return tuple(self._measured(name, metric) for name, metric in self._metrics.items())

    def _measured(self, name: str, metric: Metric) -> Measured:
        by_rank = self._series[name]
        counting = series_to_aggregate(metric, by_rank)
        counted = sum(series.counted for series in counting)
        printed = sum(series.printed for series in by_rank.values())
        return Measured(name, aggregate_over_ranks(metric, counting), metric, counted, printed)

    def _series_of(self, name: str, rank: int) -> Series:
        return self._series[name].setdefault(rank, Series(self._metrics[name]))


def _number(match: re.Match[str] | None) -> float | None:
    text = None if match is None else match["value"]
    if text is None:
        return None
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
