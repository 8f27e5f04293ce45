"""AWS's own time, from the `Date` header of its responses, so that costs do not depend on this machine's clock."""

import contextlib
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

from cloudgpu import bounds
from cloudgpu.clock import Clock

_HALF_S: Final = timedelta(seconds=0.5)
"""The header contains whole seconds, rounded down."""
_NOTED_S: Final = 10
"""Difference between the clocks, in seconds, that is reported."""
_UNNOTICED: Final = timedelta(seconds=2)
"""A smaller difference is the time that a response takes."""


class ServerTime:
    """The time by AWS's clock: this machine's time, corrected by the difference at the last response."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = timedelta(0)
        self._reported = False

    def update(self, date: str) -> None:
        """Compare the clocks. `date` is the `Date` header of a response that has just arrived, or empty."""
        with contextlib.suppress(ValueError, TypeError):
            ahead = bounds.to_utc(parsedate_to_datetime(date)) + _HALF_S - self._clock.now()
            self._ahead = ahead if abs(ahead) > _UNNOTICED else timedelta(0)

    def ahead(self) -> timedelta:
        """Return by how much AWS's clock is ahead of this machine's; zero if it is unknown or negligible."""
        return self._ahead

    def now(self) -> datetime:
        """Return the time by AWS's clock, in UTC."""
        return self._clock.now() + self._ahead

    def difference_to_report(self) -> str:
        """Return a message if the clocks differ by much, once; otherwise an empty text."""
        ahead_s = round(self._ahead.total_seconds())
        if self._reported or abs(ahead_s) < _NOTED_S:
            return ""
        self._reported = True
        side = "behind" if ahead_s > 0 else "ahead of"
        counted = "costs are counted by the cloud's clock, expiries by this machine's"
        return f"this machine's clock is {abs(ahead_s)} s {side} the cloud's; {counted}"
