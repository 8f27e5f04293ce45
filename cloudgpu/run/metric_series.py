"""Aggregate the values of a metric, per rank and across ranks."""

import math
import statistics
from array import array
from collections.abc import Callable, Mapping, Sequence

from cloudgpu.recipe.launch_sections import Metric

_OVER_RANKS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "first": lambda values: values[0],
    "sum": math.fsum,
    "mean": statistics.fmean,
    "max": max,
    "min": min,
}


MOST_KEPT = 1 << 20


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
