"""A clock that reports how long a handler has been waiting and enforces the operation's timeout."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from cloudgpu.clock import Clock
from cloudgpu.errors import CloudError

_REPORT_EVERY_S: Final = 5.0

OnWait = Callable[[float], None]
"""Called while an operation waits, with the seconds since its start."""


def ignore_wait(_elapsed_s: float) -> None:
    """Do not report the wait."""


class WatchedClock:
    """A clock for one operation. It wraps another clock and reports waits.

    `sleep` calls `on_wait` with the seconds since the operation started, at most once every `say_every_s` seconds.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        what: str,
        on_wait: OnWait,
        timeout_s: float | None = None,
        say_every_s: float = _REPORT_EVERY_S,
        hint: str = "increase `custom_timeouts` in the program",
    ) -> None:
        self._clock = clock
        self._what = what
        self._on_wait = on_wait
        self._timeout_s = timeout_s
        self._say_every_s = say_every_s
        self._hint = hint
        self._started = clock.monotonic()
        self._last_report = self._started

    def now(self) -> datetime:
        """Return the current time, timezone-aware, in UTC."""
        return self._clock.now()

    def monotonic(self) -> float:
        """Return monotonic seconds from an arbitrary start."""
        return self._clock.monotonic()

    def elapsed(self) -> float:
        """Return seconds since this clock was created."""
        return self._clock.monotonic() - self._started

    def sleep(self, seconds: float) -> None:
        """Wait for this many seconds."""
        elapsed = self.elapsed()
        if self._timeout_s is not None and elapsed >= self._timeout_s:
            message = f"{self._what} took longer than its timeout of {self._timeout_s:g} s"
            raise CloudError(message, code="Timeout", hint=self._hint)
        if self._clock.monotonic() - self._last_report >= self._say_every_s:
            self._last_report = self._clock.monotonic()
            self._on_wait(elapsed)
        self._clock.sleep(seconds)
