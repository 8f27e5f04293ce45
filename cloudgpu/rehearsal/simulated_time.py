"""The clock for timers and schedules: the machine's clock plus the offset set by `rehearsal advance`."""

import logging
import math
import threading
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cloudgpu.clock import Clock, SystemClock
from cloudgpu.decoding import MALFORMED
from cloudgpu.paths import Home
from cloudgpu.rehearsal.layout import LIMIT_DAYS, DocumentFormat, RehearsalFiles, shift_within_limits, write_durably

_FORMAT: Final = DocumentFormat("simulated time")
_LIMIT: Final = timedelta(days=LIMIT_DAYS)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SimulatedTime:
    """The simulated time. The offset is saved to a file, because the nodes' timers keep running without the server."""

    path: Path
    clock: Clock
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def now(self) -> datetime:
        """Return the simulated time, in UTC."""
        return self.clock.now() + self.offset()

    def advance(self, seconds: float) -> None:
        """Advance the simulated time and save the offset to disk."""
        with self._lock:
            ahead_s = self.offset().total_seconds() + seconds
            if not shift_within_limits(ahead_s):
                message = f"the simulated clock can differ from this machine's clock by at most {_LIMIT.days} days"
                raise ValueError(message)
            write_durably(self.path, _FORMAT.encode({"ahead_s": ahead_s}))

    def offset(self) -> timedelta:
        """Return the offset from the machine's clock. If the file is damaged, rename it and return zero."""
        try:
            ahead_s = _FORMAT.read(self.path)["ahead_s"]
        except FileNotFoundError:
            return timedelta()
        except (OSError, *MALFORMED):
            ahead_s = math.nan
        if isinstance(ahead_s, int | float) and shift_within_limits(ahead_s):
            return timedelta(seconds=ahead_s)
        self._rename_damaged()
        return timedelta()

    def _rename_damaged(self) -> None:
        renamed = self.path.with_suffix(".damaged")
        _log.warning("%s is damaged: renaming it to %s and using this machine's clock", self.path, renamed.name)
        try:
            self.path.replace(renamed)
        except OSError as err:
            _log.warning("cannot rename %s: %s", self.path, err)


def clock_ahead(home: Home) -> timedelta:
    """Return how far `rehearsal advance` has moved a state home's simulated clock ahead of this machine's clock."""
    return SimulatedTime(RehearsalFiles.of(home).time, SystemClock()).offset()
