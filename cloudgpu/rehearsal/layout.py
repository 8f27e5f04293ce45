"""File names below `Home.rehearsal`. Everything of one rehearsal cloud lies here, private to its owner."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cloudgpu.paths import Home

LIMIT_DAYS: Final = 3650
"""How far the simulated clock may be from the machine's: further on, dates no longer fit in what computes with them."""


def shift_within_limits(seconds: float) -> bool:
    """Return True if a clock may be ahead (or behind, below zero) by this much."""
    return -LIMIT_DAYS * 86400 <= seconds <= LIMIT_DAYS * 86400  # never true of NaN, and integers may be of any size


@dataclass(frozen=True)
class RehearsalFiles:
    """The files of one rehearsal cloud."""

    root: Path

    @classmethod
    def of(cls, home: Home) -> "RehearsalFiles":
        """The files of this home's rehearsal cloud."""
        return cls(home.rehearsal)

    @property
    def endpoint(self) -> Path:
        """Address and process of the server that runs now, or of the last one that did."""
        return self.root / "endpoint.json"

    @property
    def keys(self) -> Path:
        """Access keys, mode 0600."""
        return self.root / "keys.json"

    @property
    def log(self) -> Path:
        """What the server says; read back when it dies at the start."""
        return self.root / "server.log"

    @property
    def start_lock(self) -> Path:
        """Held by whoever starts the server; the kernel frees it when that process dies."""
        return self.root / "start.lock"

    @property
    def server_lock(self) -> Path:
        """Held by the server for its life, so that two servers never share one state."""
        return self.root / "server.lock"

    @property
    def state(self) -> Path:
        """Snapshots, one file a service and region."""
        return self.root / "state"

    @property
    def objects(self) -> Path:
        """Contents of S3 objects, named by their SHA-256."""
        return self.root / "objects"

    @property
    def reserve(self) -> Path:
        """Space held back for deletions on a full disk."""
        return self.root / "reserve"

    @property
    def market(self) -> Path:
        """Capacity and quota tables."""
        return self.root / "market.json"

    @property
    def time(self) -> Path:
        """How far the simulated time is ahead."""
        return self.root / "time.json"

    @property
    def failure(self) -> Path:
        """Why the last server could not start, and what to do about it."""
        return self.root / "failure.json"

    @property
    def nodes(self) -> Path:
        """The node host's own directory."""
        return self.root / "nodes"
