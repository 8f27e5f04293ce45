"""Time as a collaborator, so that no test sleeps and no code calls `datetime.now` by itself."""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Wall time in UTC, monotonic seconds, and waiting."""

    def now(self) -> datetime:
        """The current time, aware, UTC."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """The current time, aware, UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait for real."""
        time.sleep(seconds)


class ManualClock:
    """A clock that only moves when told to: `sleep` advances it at once."""

    def __init__(self, start: datetime) -> None:
        self._now = start
        self._monotonic = 0.0

    def now(self) -> datetime:
        """The time it was set to, plus what was slept."""
        return self._now

    def monotonic(self) -> float:
        """Seconds slept so far."""
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        """Advance without waiting."""
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds
