"""One simulated time for a cloud and all its commands: whoever waits moves it, and nobody waits for real.

The file holds by how many seconds it is ahead of the machine's clock.
"""

import mmap
import struct
import threading
import time
from datetime import UTC, datetime, timedelta

_YIELD_S = 0.01
"""What a wait takes for real, so that whoever is awaited gets its turn."""


class SharedClock:
    """Implements `cloudgpu.clock.Clock`."""

    def __init__(self, path):
        with open(path, "r+b") as file:  # noqa: PTH123 - a mapping needs its descriptor
            self._ahead = mmap.mmap(file.fileno(), 8)
        self._lock = threading.Lock()

    def now(self):
        return datetime.now(UTC) + timedelta(seconds=self.ahead_s)

    def monotonic(self):
        return time.monotonic() + self.ahead_s

    def sleep(self, seconds):
        """Sleepers side by side wake when the same time has come; they do not add up."""
        until = self.monotonic() + seconds
        time.sleep(_YIELD_S)
        with self._lock:
            missing = until - self.monotonic()
            if missing > 0:
                self.ahead_s += missing

    def yield_(self, _seconds):
        """For who must not make time pass: the wait of somebody who will be killed in the middle of it."""
        time.sleep(_YIELD_S)

    @property
    def ahead_s(self):
        return struct.unpack("<d", self._ahead[:8])[0]

    @ahead_s.setter
    def ahead_s(self, seconds):
        self._ahead[:8] = struct.pack("<d", seconds)
