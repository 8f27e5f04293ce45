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
    """Number of values printed by all ranks, including skipped warm-up values and values of unused ranks."""

    @property
    def share(self) -> float | None:
        """Value divided by the reference. None if either is missing, the value is not finite, or the reference is 0."""
        reference = self.metric.reference
        if self.value is None or not math.isfinite(self.value) or reference is None or reference.value == 0:
            return None
        return self.value / reference.value

    @property
    def missed_target(self) -> bool:
        """True if the metric has a target (`at_least` or `at_most`) and missed it. NaN misses every target."""
        if self.metric.at_least is None and self.metric.at_most is None:
            return False
        return self.value is None or not math.isfinite(self.value) or self.is_too_low or self.is_too_high

    @property
    def is_too_low(self) -> bool:
        """True if the metric is below its minimum."""
        return self.value is not None and self.metric.at_least is not None and self.value < self.metric.at_least

    @property
    def is_too_high(self) -> bool:
        """True if the metric is above its maximum."""
        return self.value is not None and self.metric.at_most is not None and self.value > self.metric.at_most


_LONGEST_LINE = 16384
"""Maximum number of characters searched per line, because patterns may be slow."""


_NOT_BY_TEXT = re.compile(r"\\[AZzDWB]|\[\^|\(\?(?!P[<=]|:)|[*+?}]\+")
"""Syntax with which a search of the whole text could miss a line or take too long."""


class Metrics:
    """The values of every metric, by rank."""

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        self._metrics = dict(metrics)
        self._patterns = {name: re.compile(metric.pattern) for name, metric in metrics.items()}
        self._filters = [_line_filter(metric.pattern) for metric in metrics.values()]
        self._series: dict[str, dict[int, Series]] = defaultdict(dict)

    def may_match(self, text: str) -> bool:
        """Return False if no line of the text matches any pattern. One search is faster than one for each line."""
        return any(pattern is None or pattern.search(text) is not None for pattern in self._filters)

    def read(self, line: str, rank: int = 0) -> list[tuple[str, float, str]]:
        """Parse one line of a rank's output, record its metrics, and return each metric's (name, value, unit)."""
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


def _line_filter(pattern: str) -> re.Pattern[str] | None:
    """Return a pattern that matches a text whenever `pattern` matches one of its lines; None if there is none.

    With MULTILINE, a match of a line is also a possible match of the whole text, unless the pattern looks around, keeps
    the engine from backtracking, or refers to the ends of the text. Classes that match almost everything are excluded,
    because their matches could extend over the whole text and take time quadratic in its length.
    """
    return None if _NOT_BY_TEXT.search(pattern) else re.compile(pattern, re.MULTILINE)
