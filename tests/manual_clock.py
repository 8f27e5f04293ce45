"""A clock for tests: it advances only when the code under test sleeps."""

from datetime import datetime, timedelta


class ManualClock:
    """A `Clock` that advances only when `sleep` is called; `sleep` returns immediately."""

    def __init__(self, start: datetime) -> None:
        self._now = start
        self._monotonic = 0.0

    def now(self) -> datetime:
        """Return the start time plus the seconds slept."""
        return self._now

    def monotonic(self) -> float:
        """Return the seconds slept so far."""
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        """Advance the clock by this many seconds and return immediately."""
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds
