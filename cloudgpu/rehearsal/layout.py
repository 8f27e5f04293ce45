"""Paths and JSON formats of a rehearsal cloud's files below `Home.rehearsal`. All files are private to their owner.

Version 0.1.0 wrote no format number, so a file without a number has format 1. A file with a higher number than this
version knows was written by a newer version. Such a file is rejected instead of being treated as damaged, because
damaged files are replaced or deleted.

    file                        written by      read by
    endpoint.json               server          commands, the next server
    keys.json                   server, command server, commands
    market.json, time.json      server          the next server
    failure.json                server          the command that started the server
    ended.json                  server, reset   commands, the next server
    nodes/host.json             node host       the next node host
    nodes/images.json           node host       node host
    nodes/instances/ID/record.json  node host   the next node host

All other state (client tokens, schedules, resources) is in the snapshots of `store.py`, whose first line identifies
their format. Faults and conditions are kept only in memory, except for the limits in market.json.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cloudgpu import files
from cloudgpu.paths import Home
from cloudgpu.state.documents import FIRST, FORMAT, stored_format

LIMIT_DAYS: Final = 3650
"""Maximum offset of the simulated clock from the machine's clock. A larger offset may overflow date arithmetic."""


@dataclass(frozen=True)
class DocumentFormat:
    """The format of one kind of file: the kind's name in messages, and the newest number that this version reads."""

    name: str
    number: int = FIRST

    def encode(self, values: Mapping[str, object]) -> bytes:
        """Return the contents of a file with these values and the current format number."""
        return json.dumps({FORMAT: self.number, **values}).encode()

    def read(self, path: Path, limit: int = files.SETTINGS_BYTES) -> dict[str, Any]:
        """Read a file of at most `limit` bytes. Return its values without the format number."""
        values = files.read_json(path, limit)
        if not isinstance(values, dict):
            message = f"expected a mapping, got {type(values).__name__}"
            raise ValueError(message)  # noqa: TRY004 - callers treat both as damage
        stored_format(path, self.name, values, self.number)
        values.pop(FORMAT, None)
        return values


ENDPOINT_FORMAT: Final = DocumentFormat("server address")
FAILURE_FORMAT: Final = DocumentFormat("start-up error")


def shift_within_limits(seconds: float) -> bool:
    """Return True if a clock offset in seconds, positive or negative, is within the limit."""
    return -LIMIT_DAYS * 86400 <= seconds <= LIMIT_DAYS * 86400  # False for NaN; works for integers of any size


@dataclass(frozen=True)
class RehearsalFiles:
    """The files of one rehearsal cloud."""

    root: Path

    @classmethod
    def of(cls, home: Home) -> "RehearsalFiles":
        """Return the files of this state home's rehearsal cloud."""
        return cls(home.rehearsal)

    @property
    def endpoint(self) -> Path:
        """File with the URL, pid and access key ID of the running or most recent server."""
        return self.root / "endpoint.json"

    @property
    def keys(self) -> Path:
        """File with the access keys, mode 0600."""
        return self.root / "keys.json"

    @property
    def log(self) -> Path:
        """Server log, quoted in the error if the server fails to start."""
        return self.root / "server.log"

    @property
    def start_lock(self) -> Path:
        """Lock file held by the process that starts the server; the kernel releases the lock if that process dies."""
        return self.root / "start.lock"

    @property
    def server_lock(self) -> Path:
        """Lock file held by the server while it runs, so that two servers never share the same state."""
        return self.root / "server.lock"

    @property
    def state(self) -> Path:
        """Directory of the simulated services' saved state, with one file per service and region."""
        return self.root / "state"

    @property
    def objects(self) -> Path:
        """Directory of S3 object contents, in files named after their SHA-256 digest."""
        return self.root / "objects"

    @property
    def reserve(self) -> Path:
        """File that reserves disk space, so that deletions still work on a full disk."""
        return self.root / "reserve"

    @property
    def market(self) -> Path:
        """File with the capacity, quota and price tables."""
        return self.root / "market.json"

    @property
    def time(self) -> Path:
        """File with the offset of the simulated time."""
        return self.root / "time.json"

    @property
    def ended_instances(self) -> Path:
        """File with the instances that ended when the cloud was stopped."""
        return self.root / "ended.json"

    @property
    def failure(self) -> Path:
        """File with the error and hint from the last server that failed to start."""
        return self.root / "failure.json"

    @property
    def nodes(self) -> Path:
        """Directory of the node host's socket, log, records and disks."""
        return self.root / "nodes"
