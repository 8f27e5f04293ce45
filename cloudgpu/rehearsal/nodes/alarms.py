"""The moments at which a node has to be looked at again."""

import asyncio
from collections.abc import Callable, Iterable

_LONGEST_SLEEP_S = 3600.0


class Alarms:
    """Wakes a node up. An alarm that is far away wakes up early and looks again: the machine may have slept."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._set: list[asyncio.TimerHandle] = []

    def put(self, waits_s: Iterable[float]) -> None:
        """Set every alarm anew, each so many seconds from now; what is due already rings at once."""
        self.clear()
        loop = asyncio.get_running_loop()
        self._set = [loop.call_later(min(max(0.0, wait_s), _LONGEST_SLEEP_S), self._ring) for wait_s in waits_s]

    def clear(self) -> None:
        """None rings any more."""
        for alarm in self._set:
            alarm.cancel()
        self._set = []
