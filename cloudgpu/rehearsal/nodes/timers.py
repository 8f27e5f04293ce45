"""Timers that wake a node up."""

import asyncio
from collections.abc import Callable, Iterable

_LONGEST_SLEEP_S = 3600.0


class Alarms:
    """Timers of a node. A distant one wakes up early and checks again, because the machine may have been suspended."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._set: list[asyncio.TimerHandle] = []

    def put(self, waits_s: Iterable[float]) -> None:
        """Replace all timers. Each fires after the given seconds, or at once if it is already due."""
        self.clear()
        loop = asyncio.get_running_loop()
        self._set = [loop.call_later(min(max(0.0, wait_s), _LONGEST_SLEEP_S), self._ring) for wait_s in waits_s]

    def clear(self) -> None:
        """Cancel all timers."""
        for alarm in self._set:
            alarm.cancel()
        self._set = []
