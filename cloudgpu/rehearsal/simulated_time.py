"""The clock of everything scheduled: the machine's clock plus the offset of `rehearsal advance`."""

import json
import logging
import math
import threading
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cloudgpu import files
from cloudgpu.clock import Clock
from cloudgpu.decoding import MALFORMED
from cloudgpu.rehearsal.layout import LIMIT_DAYS, shift_within_limits
from cloudgpu.rehearsal.state.durable import write_durably

_LIMIT: Final = timedelta(days=LIMIT_DAYS)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SimulatedTime:
    """The simulated time. Its offset is stored in a file, because the nodes' timers outlive the server as well."""

    path: Path
    clock: Clock
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def now(self) -> datetime:
        """Return the simulated time, UTC."""
        return self.clock.now() + self.ahead()

    def advance(self, seconds: float) -> None:
        """Advance the simulated time and save the offset to disk.

        Raises:
            ValueError: Not a number of seconds, or the clock would be too far from the machine's.
            StateError: The disk is full or unwritable.
        """
        with self._lock:
            ahead_s = self.ahead().total_seconds() + seconds
            if not shift_within_limits(ahead_s):
                message = f"the simulated clock can be at most {_LIMIT.days} days from this machine's clock"
                raise ValueError(message)
            write_durably(self.path, json.dumps({"ahead_s": ahead_s}).encode())

    def ahead(self) -> timedelta:
        """Return the offset. A damaged file is renamed and the offset reset to zero."""
        try:
            ahead_s = files.read_json(self.path, files.SETTINGS_BYTES)["ahead_s"]
        except FileNotFoundError:
            return timedelta()
        except (OSError, *MALFORMED):
            ahead_s = math.nan
        if isinstance(ahead_s, int | float) and shift_within_limits(ahead_s):
            return timedelta(seconds=ahead_s)
        self._put_aside()
        return timedelta()

    def _put_aside(self) -> None:
        aside = self.path.with_suffix(".damaged")
        _log.warning("%s is damaged: renaming it to %s and using this machine's clock", self.path, aside.name)
        try:
            self.path.replace(aside)
        except OSError as err:
            _log.warning("cannot rename %s: %s", self.path, err)
