"""A gate for work in threads. After it is closed, no new work starts, and callers can wait for the work in progress.

A thread pool does not guarantee this: an interrupt during `submit` may leave a thread that the pool does not track.
"""

import contextlib
import threading
from collections.abc import Iterator
from types import TracebackType


class StoppedError(Exception):
    """The gate is closed, so new work was rejected. Report the error that closed the gate instead of this one."""


class Gate:
    """A gate that admits work until it is closed. Wrap each piece of work in `with gate:`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = False

    def __enter__(self) -> None:
        with self._changed:
            if self._closed:
                raise StoppedError
            self._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Reject new work."""
        with self._changed:
            self._closed = True

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """Reject new work once the `with` block is left, for example by an interrupt."""
        try:
            yield
        finally:
            self.close()

    def wait(self) -> None:
        """Wait until all admitted work has finished."""
        with self._changed:
            self._changed.wait_for(lambda: self._inside == 0)
