"""Aggregate the values of a metric, per rank and over ranks. Pure."""

import math
import statistics
from array import array
from collections.abc import Callable, Mapping, Sequence

from cloudgpu.recipe.metric import Metric

_OVER_RANKS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "first": lambda values: values[0],
    "sum": math.fsum,
    "mean": statistics.fmean,
    "max": max,
    "min": min,
}


MOST_KEPT = 1 << 20


class Series:
    """The values of one metric printed by one rank. Only a median needs all of them.

    At most a million are kept. Beyond that, every second one is kept, then every fourth and so on, so that endless
    output does not fill the caller's memory.
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
        """Number of values without the skipped ones."""
        return max(0, self._printed - self._skip)

    @property
    def printed(self) -> int:
        """Number of all printed values."""
        return self._printed

    @property
    def value(self) -> float | None:
        """The aggregated value; None without values. It is NaN if any of several values is."""
        if not self.counted:
            return None
        if self._take == "last":
            return self._last
        return math.nan if self._broken else self._summary()

    def _summary(self) -> float:
        if self._take == "median":
            return statistics.median(self._kept)
        return {"mean": self._sum / self.counted, "max": self._most, "min": self._least}[self._take]


def that_count(metric: Metric, by_rank: Mapping[int, Series]) -> list[Series]:
    """Return the ranks that determine a metric: those with a value, or only the first of them."""
    speaking = [series for _, series in sorted(by_rank.items()) if series.counted]
    return speaking[:1] if metric.over_ranks == "first" else speaking


def over_ranks(metric: Metric, speaking: Sequence[Series]) -> float | None:
    """Return the metric over these ranks, or None if there are none."""
    values = [series.value for series in speaking if series.value is not None]
    if not values:
        return None
    if not all(map(math.isfinite, values)):
        return math.nan
    try:
        return _OVER_RANKS[metric.over_ranks](values)
    except OverflowError:
        return math.inf  # finite values whose sum is not
