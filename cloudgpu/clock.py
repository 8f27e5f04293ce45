"""Clocks that callers pass to functions, so that tests need not sleep and no other code calls `datetime.now`.

Every wait of a command ends at once when the user interrupts the command. In the main thread, Python ends the wait,
because the signal handler raises KeyboardInterrupt. In every other thread, the wait must belong to a `CancelScope`,
which the interrupted caller cancels.
"""

import threading
import time
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def utc_text(at: datetime, timespec: str = "auto") -> str:
    """Return a time in ISO 8601, in UTC and with `Z`, as in every JSON output: `2026-11-21T12:00:00Z`."""
    return at.astimezone(UTC).isoformat(timespec=timespec).removesuffix("+00:00") + "Z"


class Cancelled(BaseException):
    """The caller of this thread was interrupted. Not an Exception, so that no retry catches it."""


class CancelScope:
    """Calls in other threads that end together: after `cancel`, each of them ends at its next wait.

    A scope that is created in a call of another scope is cancelled with it.
    """

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._inner: weakref.WeakSet[CancelScope] = weakref.WeakSet()
        outer = _scope_of_thread()
        if outer is not None:
            outer._adopt(self)

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """End the waits of all calls. The caller does not wait for the calls themselves."""
        with _NESTING:
            self._cancelled.set()
            inner = list(self._inner)
        for scope in inner:
            scope.cancel()

    def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call in this thread as part of the scope."""
        outer, _of_thread.scope = _scope_of_thread(), self
        try:
            require_not_cancelled()
            return call(*args, **kwargs)
        finally:
            _of_thread.scope = outer

    def _adopt(self, inner: "CancelScope") -> None:
        with _NESTING:
            self._inner.add(inner)
            if self.cancelled:
                inner._cancelled.set()

    def _pause(self, seconds: float) -> None:
        if self._cancelled.wait(seconds):
            raise Cancelled


_NESTING = threading.RLock()
_of_thread = threading.local()


def _scope_of_thread() -> CancelScope | None:
    scope: CancelScope | None = getattr(_of_thread, "scope", None)
    return scope


def require_not_cancelled() -> None:
    """Check that the caller of this thread was not interrupted. Loops that wait without a clock call this."""
    scope = _scope_of_thread()
    if scope is not None and scope.cancelled:
        raise Cancelled


SIGNALS_S: Final = 0.25
"""Longest time, in seconds, that the main thread blocks at once.

Python handles a signal between two instructions of the main thread. A signal that arrives just before the thread
blocks, or that the kernel delivers to another thread, does not wake it and would have no effect until the wait ends.
"""


class Clock(Protocol):
    """A source of wall-clock time in UTC and monotonic time, and a way to wait."""

    def now(self) -> datetime:
        """Return the current time, timezone-aware, in UTC."""

    def monotonic(self) -> float:
        """Return monotonic seconds from an arbitrary start."""

    def sleep(self, seconds: float) -> None:
        """Wait for this many seconds. An interrupted command ends the wait with an exception."""


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
        scope = _scope_of_thread()
        if scope is not None:
            scope._pause(seconds)
            return
        end = time.monotonic() + seconds
        while (left_s := end - time.monotonic()) > 0:
            time.sleep(min(left_s, SIGNALS_S))
