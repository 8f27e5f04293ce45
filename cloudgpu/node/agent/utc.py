"""Times as the agent writes them."""

from __future__ import annotations

import time


def utc(seconds: float) -> str:
    """Seconds since 1970 as `2026-11-21T05:00:00Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def now() -> str:
    """This moment."""
    return utc(time.time())
