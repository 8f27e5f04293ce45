"""A clock for handlers that reports waits and enforces the operation's timeout."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from cloudgpu.clock import Clock
from cloudgpu.errors import CloudError

_SAY_EVERY_S: Final = 5.0


class WatchedClock:
    """Forwards to another clock. `on_wait` receives the seconds since the start, at most every `say_every_s`."""

    def __init__(
        self,
        clock: Clock,
        *,
        what: str,
        on_wait: Callable[[float], None],
        timeout_s: float | None = None,
        say_every_s: float = _SAY_EVERY_S,
    ) -> None:
        self._clock = clock
        self._what = what
        self._on_wait = on_wait
        self._timeout_s = timeout_s
        self._say_every_s = say_every_s
        self._began = clock.monotonic()
        self._said = self._began

    def now(self) -> datetime:
        """Return the current time, UTC."""
        return self._clock.now()

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start."""
        return self._clock.monotonic()

    def elapsed(self) -> float:
        """Return seconds since this clock was created."""
        return self._clock.monotonic() - self._began

    def sleep(self, seconds: float) -> None:
        """Wait.

        Raises:
            CloudError: The operation's own timeout (the `custom_timeouts` resource option) is over.
        """
        elapsed = self.elapsed()
        if self._timeout_s is not None and elapsed >= self._timeout_s:
            message = f"{self._what} took longer than its timeout of {self._timeout_s:g} s"
            raise CloudError(message, code="Timeout", hint="raise `custom_timeouts` in the program")
        if self._clock.monotonic() - self._said >= self._say_every_s:
            self._said = self._clock.monotonic()
            self._on_wait(elapsed)
        self._clock.sleep(seconds)
