"""The progress of the downloads that one `fetch` request asks for."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Callable

_EVERY_S = 0.5
"""Minimum time between two reports, in seconds."""


class Progress:
    """The bytes that are present on this node, in total and for each file or part of a file. Threads may share it."""

    def __init__(self, report: Callable[[int], None]) -> None:
        """Call `report` with the total, at most every `_EVERY_S` seconds."""
        self._report = report
        self._sizes: dict[str, int] = {}
        self._total = 0
        self._reported_at = time.monotonic()
        self._lock = threading.Lock()

    def at(self, part: str, size: int) -> None:
        """Record that `size` bytes of this part are present, which are fewer than before if bytes were discarded."""
        with self._lock:
            self._total += size - self._sizes.get(part, 0)
            self._sizes[part] = size
            now = time.monotonic()
            if now - self._reported_at < _EVERY_S:
                return
            self._reported_at = now
            with contextlib.suppress(OSError):  # the caller has disconnected, which the verb's last message reports
                self._report(self._total)
