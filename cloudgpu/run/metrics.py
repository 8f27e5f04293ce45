"""Figures read from the ranks' lines, by the recipe's patterns."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from cloudgpu.recipe.schema import Metric


@dataclass(frozen=True)
class Measured:
    """The last value of one metric, beside what the recipe compares it with."""

    name: str
    value: float | None
    metric: Metric

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
        return self.metric.at_least is not None and (self.value is None or not self.value >= self.metric.at_least)


_LONGEST_LINE = 16384
"""Characters of a line that are looked at: figures stand at its beginning, and patterns may be slow."""


class Metrics:
    """Collects the last match of every pattern."""

    def __init__(self, wanted: Mapping[str, Metric]) -> None:
        self._wanted = dict(wanted)
        self._patterns = {name: re.compile(metric.pattern) for name, metric in wanted.items()}
        self._values: dict[str, float] = {}

    def read(self, line: str) -> list[tuple[str, float, str]]:
        """The figures of one line: name, value, unit."""
        found = []
        for name, pattern in self._patterns.items():
            value = _number(pattern.search(line[:_LONGEST_LINE]))
            if value is not None:
                self._values[name] = value
                found.append((name, value, self._wanted[name].unit))
        return found

    def measured(self) -> tuple[Measured, ...]:
        """Every metric of the recipe, with its last value or none."""
        return tuple(Measured(name, self._values.get(name), metric) for name, metric in self._wanted.items())


def _number(match: re.Match[str] | None) -> float | None:
    text = None if match is None else match["value"]
    if text is None:
        return None
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
