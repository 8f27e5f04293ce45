"""Parse metrics from rank output with the recipe's patterns, and aggregate them per rank and across ranks."""

import functools
import math
import statistics
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cloudgpu.recipe.launch_sections import Metric
from cloudgpu.run.metric_search import Query, SearchProcess, Stopped
from cloudgpu.text import plural

_OVER_RANKS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "first": lambda values: values[0],
    "sum": math.fsum,
    "mean": statistics.fmean,
    "max": max,
    "min": min,
}


MOST_KEPT = 1 << 20
_MOST_STOPPED: Final = 3
"""Number of lines that all patterns together may fail to search in time. The next failure ends the use of a pattern."""
_TOO_SLOW: Final = "its pattern is too slow for the output"
_SLOW_HINT: Final = "put the text before the value into the pattern, and avoid nested repetitions such as (a+)+"


class Series:
    """The values of one metric that one rank printed. Individual values are stored only for a median.

    Fewer than `MOST_KEPT` values are stored. Beyond that limit, only every second value is stored, then every fourth
    and so on, so that endless output does not fill the caller's memory.
    """

    def __init__(self, metric: Metric) -> None:
        self._take = metric.take
        self._skip = metric.skip
        self._printed = 0
        self._last = self._sum = 0.0
        self._least, self._most = math.inf, -math.inf
        self._kept = array("d")
        self._step = 1
        self._broken = False

    def add(self, value: float) -> None:
        """Add the next value that the rank printed."""
        self._printed += 1
        if self._printed <= self._skip:
            return
        self._last = value
        self._sum += value
        self._broken = self._broken or not math.isfinite(value)
        self._least, self._most = min(self._least, value), max(self._most, value)
        if self._take == "median":
            self._keep(value)

    def _keep(self, value: float) -> None:
        if (self.counted - 1) % self._step:
            return
        self._kept.append(value)
        if len(self._kept) >= MOST_KEPT:
            self._kept = self._kept[::2]
            self._step *= 2

    @property
    def counted(self) -> int:
        """Number of values, excluding skipped values."""
        return max(0, self._printed - self._skip)

    @property
    def printed(self) -> int:
        """Total number of values that the rank printed."""
        return self._printed

    @property
    def value(self) -> float | None:
        """This rank's last value or aggregate. NaN if an aggregated value is not finite, None if there is no value."""
        if not self.counted:
            return None
        if self._take == "last":
            return self._last
        return math.nan if self._broken else self._summary()

    def _summary(self) -> float:
        if self._take == "median":
            return statistics.median(self._kept)
        return {"mean": self._sum / self.counted, "max": self._most, "min": self._least}[self._take]


def series_to_aggregate(metric: Metric, by_rank: Mapping[int, Series]) -> list[Series]:
    """Return the series to aggregate: all that have values, or only the lowest rank's for `over_ranks: first`."""
    with_values = [series for _, series in sorted(by_rank.items()) if series.counted]
    return with_values[:1] if metric.over_ranks == "first" else with_values


def aggregate_over_ranks(metric: Metric, series_of_ranks: Sequence[Series]) -> float | None:
    """Aggregate a metric across ranks. Return None if no rank has a value, and NaN if a rank's value is not finite."""
    values = [series.value for series in series_of_ranks if series.value is not None]
    if not values:
        return None
    if not all(map(math.isfinite, values)):
        return math.nan
    try:
        return _OVER_RANKS[metric.over_ranks](values)
    except OverflowError:
        return math.inf  # the values are finite, but their sum is not


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
            self._series[name].setdefault(rank, Series(self._metrics[name])).add(value)
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


@functools.cache
def _search_process() -> SearchProcess:
    """Return the process that searches for all metrics. It starts with the first search."""
    return SearchProcess()
