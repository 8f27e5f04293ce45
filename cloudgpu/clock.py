"""Clocks that callers pass to functions, so that tests need not sleep and no other code calls `datetime.now`."""

import time
from datetime import UTC, datetime
from typing import Protocol


def utc_text(at: datetime, timespec: str = "auto") -> str:
    """Return a time in ISO 8601, in UTC and with `Z`, as in every JSON output: `2026-11-21T12:00:00Z`."""
    return at.astimezone(UTC).isoformat(timespec=timespec).removesuffix("+00:00") + "Z"


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
