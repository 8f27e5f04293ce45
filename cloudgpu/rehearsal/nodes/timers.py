"""Timers of a node."""

import asyncio
from collections.abc import Callable, Iterable

_LONGEST_SLEEP_S = 3600.0


class NodeTimers:
    """The timers of a node.

    Timers with a long wait fire early, so the callback must check the time and call `put` again. Waits are limited
    because the machine may be suspended, which stops the event loop's clock.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._set: list[asyncio.TimerHandle] = []

    def put(self, waits_s: Iterable[float]) -> None:
        """Replace all timers. Each fires after its number of seconds, or immediately if it is already due."""
        self.clear()
        loop = asyncio.get_running_loop()
        self._set = [loop.call_later(min(max(0.0, wait_s), _LONGEST_SLEEP_S), self._ring) for wait_s in waits_s]

    def clear(self) -> None:
        """Cancel all timers."""
        for alarm in self._set:
            alarm.cancel()
        self._set = []
