"""A forked process that cleans up if this process dies."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Callable, List, Sequence

CleanUp = Callable[[List[bytes]], None]
_DISMISSAL = b"bye\n"


class WatchdogProcess:
    """A forked process that cleans up when this process dies or closes it, unless it was dismissed.

    Attributes:
        last: The last message that was sent; empty if none was.
    """

    def __init__(self, clean_up: CleanUp, *, keep: Sequence[int] = ()) -> None:
        """Start the process.

        Args:
            clean_up: Called in the watchdog with the messages that it received. Its standard streams are `/dev/null`.
            keep: Handles that the watchdog keeps open until it exits, such as a lock.
        """
        self.last = b""
        read, self._write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _run(read, clean_up, keep)
        os.close(read)

    def send(self, message: bytes) -> None:
        """Send a message, which is one word."""
        self.last = message
        with suppress(BrokenPipeError):  # the watchdog was killed
            os.write(self._write, message + b"\n")

    def dismiss(self) -> None:
        """Let the watchdog exit without cleaning up, and wait until it has closed its handles."""
        with suppress(BrokenPipeError):
            os.write(self._write, _DISMISSAL)
        os.close(self._write)
        with suppress(ChildProcessError):  # it was killed, and reaped with this process's other children
            os.waitpid(self._pid, 0)

    def close(self) -> None:
        """Let the watchdog clean up, without waiting for it."""
        os.close(self._write)


def _run(read: int, clean_up: CleanUp, keep: Sequence[int]) -> None:
    """Run the watchdog. Never returns."""
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)  # the docker client expects open streams, and the caller waits for the end of its own
        # Inherited handles would keep locks held and pipes open, also the one whose end this process waits for.
        kept = sorted({2, read, *keep})
        for handle, following in zip(kept, [*kept[1:], 4096]):
            os.closerange(handle + 1, following)
        received = b""
        for data in iter(lambda: os.read(read, 4096), b""):
            received += data
            if received.endswith(_DISMISSAL):
                return
        clean_up(received.split())
    finally:
        os._exit(0)
