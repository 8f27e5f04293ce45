"""Heartbeat lines from long-running verbs.

Without them, a caller cannot distinguish an hour-long download from an agent that hangs on a stalled file system.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

EVERY_S = 15.0
LINE = b'\n{"alive":true}\n'
"""Heartbeat line. The leading newline separates it from output of the login shell."""
ADVANCED_LINE = b'\n{"alive":true,"advanced":true}\n'
"""Heartbeat line of a verb that has made progress since the heartbeat before."""
LONG_VERBS = frozenset(
    {"env", "fetch", "follow", "forget", "hand", "image", "keep", "kept", "leave", "mount", "setup", "stop"}
)
"""Verbs that may print nothing for longer than the caller waits for a line."""


_progress = {"steps": 0}


def advance() -> None:
    """Record that the running verb has made progress. The next heartbeat says so. Safe to call from any thread."""
    _progress["steps"] += 1


class Heartbeat:
    """A timer that writes a heartbeat line every `EVERY_S` seconds.

    The timer is a signal instead of a thread, because several verbs fork: a forked child does not inherit the timer,
    and forking a process with several threads is unsafe.
    """

    def __init__(self) -> None:
        self._running = False
        self._reported_steps = _progress["steps"]

    def start(self) -> None:
        """Start the timer."""
        self._running = True
        signal.signal(signal.SIGALRM, self._beat)
        signal.setitimer(signal.ITIMER_REAL, EVERY_S, EVERY_S)

    def stop(self) -> None:
        """Stop the timer.

        Call this before the interpreter shuts down: shutdown first removes signal handlers, and SIGALRM would then kill
        the process.
        """
        signal.setitimer(signal.ITIMER_REAL, 0)

    def write(self, text: str) -> None:
        """Write a line of the verb's output.

        The timer signal is blocked during the write, because a signal can interrupt a write after some of the bytes,
        and unbuffered standard output drops the remaining bytes.
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
        steps = _progress["steps"]
        line = LINE if steps == self._reported_steps else ADVANCED_LINE
        self._reported_steps = steps
        try:
            os.write(sys.stdout.fileno(), line)
        except OSError:
            self.stop()  # the caller has disconnected; the verb notices on its next write
