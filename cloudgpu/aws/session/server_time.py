"""AWS's own time, from the `Date` header of its responses, so that costs do not depend on this machine's clock."""

import contextlib
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

from cloudgpu import bounds
from cloudgpu.clock import Clock

_HALF_S: Final = timedelta(seconds=0.5)
"""The header contains whole seconds, rounded down."""
_UNNOTICED: Final = timedelta(seconds=2)
"""A smaller difference is the time that a response takes."""


class ServerTime:
    """The time by AWS's clock: this machine's time, corrected by the difference at the last response."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = timedelta(0)

    def heard(self, date: str) -> None:
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
