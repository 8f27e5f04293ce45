"""A rehearsal cloud's files below `Home.rehearsal`: their paths and JSON formats, and how they are written to disk.

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

All files are private to their owner. All other state (client tokens, schedules, resources) is in the snapshots of
`aws_api/store.py`, whose first line identifies their format. Faults and conditions are kept only in memory, except for
the limits in market.json. Without ended.json, `status` shows clusters as recorded.
"""

import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

from cloudgpu import files
from cloudgpu.clock import utc_text
from cloudgpu.decoding import MALFORMED, decode_as
from cloudgpu.errors import NewerFormatError, StateError
from cloudgpu.paths import Home, unwritable_error
from cloudgpu.rehearsal.nodes.values import NodeReport
from cloudgpu.state.documents import FIRST, FORMAT, stored_format

_RESERVE_BYTES: Final = 2 * files.MIB
"""Size of the reserve: enough to save a batch and new snapshots of a region with hundreds of instances."""
LIMIT_DAYS: Final = 3650
"""Maximum offset of the simulated clock from the machine's clock. A larger offset may overflow date arithmetic."""
MAX_INSTANCES: Final = 4096
"""Maximum number of recorded instances. The instances of the oldest stops are removed first."""
_INSTANCE_ID: Final = re.compile(r"i-[0-9a-f]{8,17}")
_log = logging.getLogger(__name__)


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


_ENDED_FORMAT: Final = DocumentFormat("ended instances")


def _instance_id(text: str) -> None:
    if not _INSTANCE_ID.fullmatch(text):
        message = "not an instance ID"
        raise ValueError(message)


@dataclass(frozen=True)
class _Document:
    instances: Mapping[Annotated[str, _instance_id], datetime]


def ended_instances(home: Home) -> Mapping[str, datetime]:
    """Return instance ID -> time of the stop that ended the instance.

    Empty if no stop has ended an instance, or if the file cannot be read, is damaged or was written by a newer version.
    """
    try:
        return _read(RehearsalFiles.of(home))
    except (OSError, NewerFormatError, *MALFORMED):
        return {}


def record_ended_instances(files: RehearsalFiles, instance_ids: Iterable[str], at: datetime) -> None:
    """Record that a stop ended these instances. Instances of earlier stops stay recorded, with the time of their stop.

    If the file cannot be written, or if a newer version wrote it, `status` shows the instances as before the stop.
    """
    ended = dict.fromkeys(filter(_INSTANCE_ID.fullmatch, instance_ids), at)
    if not ended:
        return
    try:
        before = _read(files)
    except NewerFormatError as err:
        _log.warning("cannot record which instances ended: %s", err.message)
        return
    except (OSError, *MALFORMED):
        before = {}
    # In the order of the stops, not of their times, because this machine's clock may have been set back.
    merged = {**before, **{instance_id: at for instance_id in ended if instance_id not in before}}
    latest = dict(list(merged.items())[-MAX_INSTANCES:])
    content = _ENDED_FORMAT.encode({"instances": {instance_id: utc_text(time) for instance_id, time in latest.items()}})
    try:
        write_durably(files.ended_instances, content)
    except StateError as err:
        _log.warning("cannot record which instances ended: %s", err.message)


def running_nodes(reports: Iterable[NodeReport]) -> list[str]:
    """Return the IDs of the instances whose nodes are running, from the reports of their node host."""
    return [report.instance_id for report in reports if report.state == "running"]


def _read(files: RehearsalFiles) -> Mapping[str, datetime]:
    document = decode_as(_Document, _ENDED_FORMAT.read(files.ended_instances))
    if len(document.instances) > MAX_INSTANCES:
        message = f"more than {MAX_INSTANCES} instances"
        raise ValueError(message)
    return document.instances


class NotSavedError(StateError):
    """A call could not be saved to disk and therefore had no effect."""


def not_saved(cause: StateError) -> NotSavedError:
    """Return the error for a call that had no effect because saving it failed."""
    return NotSavedError(
        f"the rehearsal cloud cannot save this call, so it had no effect: {cause.message}",
        hint="free some disk space, then retry; deletions still work",
    )


def write_durably(path: Path, content: bytes) -> None:
    """Replace the file with `content`, mode 0600, and flush it to disk."""
    try:
        files.replace(path, content)
    except OSError as err:
        raise unwritable_error(path, err) from err


class Reserve:
    """A file that only reserves disk space. Callers must hold the simulated cloud's lock."""

    def __init__(self, path: Path) -> None:
        """Store the path. `hold` creates the file."""
        self._path = path
        self._held = False

    def hold(self) -> None:
        """Create the file unless it exists and has the right size."""
        if self._held:
            return
        try:
            if not self._path.exists() or self._path.stat().st_size != _RESERVE_BYTES:
                self._make()
        except OSError as err:
            raise unwritable_error(self._path.parent, err) from err
        self._held = True

    def release(self) -> bool:
        """Delete the file to free the reserved space. Return False if no space was reserved or the deletion failed."""
        if not self._held:
            return False
        self._held = False
        try:
            self._path.unlink()
        except OSError:
            return False
        return True

    def _make(self) -> None:
        # Check the free space first: using the last free blocks, even briefly, would make other writers fail.
        if shutil.disk_usage(self._path.parent).free < _RESERVE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        try:
            # Random bytes, because a compressing file system would allocate no blocks for zeros.
            files.create(self._path, os.urandom(_RESERVE_BYTES), durable=False)
        except OSError:
            self._path.unlink(missing_ok=True)
            raise
