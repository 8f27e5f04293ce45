"""The time that everything scheduled follows: the machine's clock, moved by `rehearsal advance`."""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cloudgpu.clock import Clock
from cloudgpu.rehearsal.durable import write_durably


@dataclass(frozen=True)
class SimulatedTime:
    """How far it is ahead is kept in a file: the nodes' timers, too, outlive the server."""

    path: Path
    clock: Clock

    def now(self) -> datetime:
        """The simulated moment, UTC."""
        return self.clock.now() + self._ahead()

    def advance(self, seconds: float) -> None:
        """Move it, on the disk before this returns.

        Raises:
            StateError: The disk is full or unwritable.
        """
        ahead_s = self._ahead().total_seconds() + seconds
        write_durably(self.path, json.dumps({"ahead_s": ahead_s}).encode())

    def _ahead(self) -> timedelta:
        try:
            return timedelta(seconds=float(json.loads(self.path.read_text(encoding="utf-8"))["ahead_s"]))
        except (OSError, ValueError, KeyError, TypeError):
            return timedelta()
