"""Tell the caller now and then that a long verb is still at work.

Without this, a caller cannot tell a download of an hour from an agent that hangs in a dead file system.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

EVERY_S = 15.0
LINE = b'\n{"alive":true}\n'
"""The line end in front separates it from what a login shell printed."""
LONG_VERBS = frozenset({"env", "fetch", "follow", "forget", "hand", "image", "keep", "leave", "mount", "stop"})
"""Verbs whose work may take longer than a caller waits for a line."""


class Heartbeat:
    """Writes a line every few seconds.

    A timer signal and not a thread, because several verbs fork, and a child of `fork` inherits no timer.
    """

    def __init__(self) -> None:
        self._running = False

    def start(self) -> None:
        """Begin."""
        self._running = True
        signal.signal(signal.SIGALRM, self._beat)
        signal.setitimer(signal.ITIMER_REAL, EVERY_S, EVERY_S)

    def stop(self) -> None:
        """End it before Python does: an interpreter that shuts down takes its handlers away first."""
        signal.setitimer(signal.ITIMER_REAL, 0)

    def write(self, text: str) -> None:
        """Write a line of the verb itself.

        The timer waits meanwhile: a signal can cut a write short, and unbuffered output does not send the rest.
        """
        if self._running:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        finally:
            if self._running:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})

    def _beat(self, _number: int, _frame: Any) -> None:  # noqa: ANN401 - signal's own protocol
        try:
            os.write(sys.stdout.fileno(), LINE)
        except OSError:
            self.stop()  # nobody reads any more; the verb finds out by itself
