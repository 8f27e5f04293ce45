"""Clocks that are passed in, so that tests need not sleep and no code calls `datetime.now` directly."""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Wall time in UTC, monotonic seconds, and waiting."""

    def now(self) -> datetime:
        """Return the current time, timezone-aware, in UTC."""

    def monotonic(self) -> float:
        """Return monotonic seconds from an arbitrary start."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Return the current time, timezone-aware, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return monotonic seconds from an arbitrary start."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block for this many seconds."""
        time.sleep(seconds)


class ManualClock:
    """A clock that moves only on `sleep`, which returns immediately."""

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
        """Advance without waiting."""
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds
