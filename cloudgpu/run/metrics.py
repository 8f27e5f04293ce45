"""Parse metrics from rank output with the recipe's patterns."""

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cloudgpu.recipe.schema import Metric
from cloudgpu.run.metric_search import Query, SearchProcess, Stopped
from cloudgpu.run.metric_series import Series, aggregate_over_ranks, series_to_aggregate
from cloudgpu.text import plural


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
    unknown: str = ""
    """Why values may have been missed, for example because the pattern was too slow; empty if none was."""

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


_MOST_STOPPED: Final = 3
"""Number of lines that all patterns together may fail to search in time. The next failure ends the use of a pattern."""
_TOO_SLOW: Final = "its pattern is too slow for the output"
_SLOW_HINT: Final = "put the text before the value into the pattern, and avoid nested repetitions such as (a+)+"


class Metrics:
    """The values of every metric, by rank."""

    def __init__(self, metrics: Mapping[str, Metric], process: SearchProcess | None = None) -> None:
        """Prepare the search. By default, all metrics share one search process."""
        self._metrics = dict(metrics)
        self._names = list(metrics)
        self._series: dict[str, dict[int, Series]] = defaultdict(dict)
        self._process = process or _search_process()
        self._by_line: set[int] = set()
        self._stopped: Counter[int] = Counter()
        self._given_up: dict[int, str] = {}
        """Index of each pattern that is no longer used -> the reason."""

    def read(self, text: str, rank: int = 0) -> list[tuple[str, float, str]]:
        """Parse lines of a rank's output, record their metrics, and return each metric's (name, value, unit)."""
        values = []
        for index, value in self._found(text):
            name = self._names[index]
            self._series_of(name, rank).add(value)
            values.append((name, value, self._metrics[name].unit))
        return values

    def _found(self, text: str) -> list[tuple[int, float]]:
        """Search the lines with every pattern that has not failed too often.

        A search that takes too long is repeated without its line, or, if it was a search of the whole text, line by
        line. The number of repetitions is limited for all of the output, so a pattern delays a run by seconds at most.
        """
        without: dict[int, list[int]] = defaultdict(list)
        while patterns := {
            index: self._metrics[name].pattern for index, name in enumerate(self._names) if index not in self._given_up
        }:
            try:
                found = self._process.search(Query(patterns, without, sorted(self._by_line)), text)
            except OSError as err:  # the machine is out of processes or memory
                reason = f"the search for its pattern cannot be started: {err.strerror}"
                self._given_up |= dict.fromkeys(patterns, reason)
                break
            if not isinstance(found, Stopped):
                return found
            if found.line < 0 and found.pattern not in self._by_line:
                self._by_line.add(found.pattern)
                continue
            without[found.pattern].append(found.line)
            self._stopped[found.pattern] += 1
            if found.line < 0 or self._stopped.total() > _MOST_STOPPED:
                self._given_up[found.pattern] = _TOO_SLOW
        return []

    @property
    def problems(self) -> tuple[str, ...]:
        """One message for each metric whose pattern could not be matched against every line."""
        return tuple(filter(None, map(self._problem, range(len(self._names)))))

    def _problem(self, index: int) -> str:
        name, reason, stopped = self._names[index], self._given_up.get(index, ""), self._stopped[index]
        if reason:
            return f"metric {name} is unknown: {reason}" + (f"; {_SLOW_HINT}" if reason == _TOO_SLOW else "")
        if stopped:
            return f"metric {name}: its pattern was too slow for {plural(stopped, 'line')}; {_SLOW_HINT}"
        return ""

    def measured(self) -> tuple[Measured, ...]:
        """Return the result of every metric in the recipe."""
        return tuple(self._measured(name, metric) for name, metric in self._metrics.items())

    def _measured(self, name: str, metric: Metric) -> Measured:
        by_rank = self._series[name]
        printed = sum(series.printed for series in by_rank.values())
        reason = self._given_up.get(self._names.index(name), "")
        if reason:
            return Measured(name, None, metric, 0, printed, reason)
        counting = series_to_aggregate(metric, by_rank)
        counted = sum(series.counted for series in counting)
        return Measured(name, aggregate_over_ranks(metric, counting), metric, counted, printed)

    def _series_of(self, name: str, rank: int) -> Series:
        return self._series[name].setdefault(rank, Series(self._metrics[name]))


@functools.cache
def _search_process() -> SearchProcess:
    """Return the process that searches for all metrics. It starts with the first search."""
    return SearchProcess()
