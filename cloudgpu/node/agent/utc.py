"""UTC timestamps."""

from __future__ import annotations

import time


def utc(seconds: float) -> str:
    """Format seconds since the epoch as `2026-11-21T05:00:00Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def now() -> str:
    """Return the current time, formatted by `utc`."""
    return utc(time.time())
