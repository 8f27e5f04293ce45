"""Clocks that callers inject, so that tests need not sleep and no code calls `datetime.now` directly."""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """A source of wall-clock time in UTC and monotonic time, and a way to wait."""

    def now(self) -> datetime:
        """Return the current time, timezone-aware, in UTC."""

    def monotonic(self) -> float:
        """Return monotonic seconds from an arbitrary start."""

    def sleep(self, seconds: float) -> None:
        """Wait for this many seconds."""


class SystemClock:
    """The operating system's clock."""

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
    """A clock that advances only when `sleep` is called; `sleep` returns immediately."""

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
