"""A simulated clock shared by a cloud and the commands that use it: a sleep advances the time instead of waiting.

The clock is a file that contains its offset from the system clock, in seconds.
"""

import mmap
import struct
import threading
import time
from datetime import UTC, datetime, timedelta

_YIELD_S = 0.01
"""Real duration of a sleep, so that the process that is waited for can run."""


class SharedClock:
    """Implementation of `cloudgpu.clock.Clock`."""

    def __init__(self, path):
        with open(path, "r+b") as file:  # noqa: PTH123 - a mapping needs its descriptor
            self._mapping = mmap.mmap(file.fileno(), 8)
        self._lock = threading.Lock()

    def now(self):
        return datetime.now(UTC) + timedelta(seconds=self.offset_s)

    def monotonic(self):
        return time.monotonic() + self.offset_s

    def sleep(self, seconds):
        """Advance the time to the end of the sleep. Concurrent sleeps overlap, as on a real clock."""
        until = self.monotonic() + seconds
        time.sleep(_YIELD_S)
        with self._lock:
            missing = until - self.monotonic()
            if missing > 0:
                self.offset_s += missing

    def yield_(self, _seconds):
        """Return after a short real sleep without advancing the time."""
        time.sleep(_YIELD_S)

    @property
    def offset_s(self):
        return struct.unpack("<d", self._mapping[:8])[0]

    @offset_s.setter
    def offset_s(self, seconds):
        self._mapping[:8] = struct.pack("<d", seconds)
