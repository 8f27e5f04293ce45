"""Paths of the files of a rehearsal cloud below `Home.rehearsal`, all private to their owner."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cloudgpu.paths import Home

LIMIT_DAYS: Final = 3650
"""Maximum offset of the simulated clock from the machine's; beyond it, date arithmetic may overflow."""


def shift_within_limits(seconds: float) -> bool:
    """Return True if this offset of a clock, positive or negative, is allowed."""
    return -LIMIT_DAYS * 86400 <= seconds <= LIMIT_DAYS * 86400  # False for NaN; works for integers of any size


@dataclass(frozen=True)
class RehearsalFiles:
    """The files of one rehearsal cloud."""

    root: Path

    @classmethod
    def of(cls, home: Home) -> "RehearsalFiles":
        """Return the files of this home's rehearsal cloud."""
        return cls(home.rehearsal)

    @property
    def endpoint(self) -> Path:
        """Address and pid of the running server, or of the last one."""
        return self.root / "endpoint.json"

    @property
    def keys(self) -> Path:
        """Access keys, mode 0600."""
        return self.root / "keys.json"

    @property
    def log(self) -> Path:
        """Log of the server, quoted in the error if it fails to start."""
        return self.root / "server.log"

    @property
    def start_lock(self) -> Path:
        """Held by the process that starts the server; the kernel releases it if that process dies."""
        return self.root / "start.lock"

    @property
    def server_lock(self) -> Path:
        """Held by the server while it runs, so that two servers never share the same state."""
        return self.root / "server.lock"

    @property
    def state(self) -> Path:
        """Snapshots, one file per service and region."""
        return self.root / "state"

    @property
    def objects(self) -> Path:
        """Contents of S3 objects, named by their SHA-256."""
        return self.root / "objects"

    @property
    def reserve(self) -> Path:
        """Reserved disk space, so that deletions still work on a full disk."""
        return self.root / "reserve"

    @property
    def market(self) -> Path:
        """Capacity and quota tables."""
        return self.root / "market.json"

    @property
    def time(self) -> Path:
        """Offset of the simulated time."""
        return self.root / "time.json"

    @property
    def failure(self) -> Path:
        """Error and hint of the last server that failed to start."""
        return self.root / "failure.json"

    @property
    def nodes(self) -> Path:
        """Directory of the node host."""
        return self.root / "nodes"
