"""A node's stored record, from which the next host process adopts the node, and its console output.

The console output is stored outside the node, so that it survives the node and its host process.
"""

import contextlib
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Protocol

from cloudgpu import files
from cloudgpu.decoding import decode_as
from cloudgpu.rehearsal.layout import DocumentFormat
from cloudgpu.rehearsal.nodes.shared_folders import Mounted
from cloudgpu.rehearsal.nodes.values import NodeReport, NodeSpec, PowerState, spec_to_json

_FORMAT: Final = DocumentFormat("node record")
_LARGEST: Final = 253_402_300_799
"""The latest Unix time that `datetime` can represent, in seconds. Records with larger numbers are rejected."""
_SHOWN_CHARACTERS: Final = 40
_SHOWN_BYTES = 64 * 1024
_LIMIT_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class Timer:
    """A simulated systemd timer, which runs `command` inside the node at a Unix time on the node's clock."""

    unit: str
    due_epoch_s: float
    command: tuple[str, ...]


class Changes(Protocol):
    """The changes that a simulated command makes to the record."""

    @property
    def disarm(self) -> str:
        """Unit of the timer to remove, or an empty string."""

    @property
    def arm(self) -> Timer | None:
        """Timer to add."""

    @property
    def mounted(self) -> Mounted | None:
        """Mount to add."""

    @property
    def unmounted(self) -> Mounted | None:
        """Mount to remove."""

    @property
    def installed(self) -> tuple[str, ...]:
        """Packages to add."""


@dataclass(frozen=True)
class SimulatedNodeRecord:
    """The record of a node. `pid` and `pid_started` identify the node's init, or are 0 if the node has no init."""

    spec: NodeSpec
    address: str
    port: int
    metadata_port: int
    host_key: str
    isolation: str
    state: PowerState = "off"
    reason: str = ""
    unheard: bool = False
    """True if the node powered itself off and no client has acknowledged the event yet."""
    scripts_done: bool = False
    booted: bool = False
    """True once the boot has finished. The next host process reboots a running node whose boot has not finished."""
    disk: bool = True
    pid: int = 0
    pid_started: int = 0
    timers: tuple[Timer, ...] = ()
    mounted: tuple[Mounted, ...] = ()
    """Active mounts; powering off the node clears them."""
    installed: tuple[str, ...] = ()
    """Simulated packages installed on the node. A node with a new disk has only its image's packages."""
    spot_end_epoch_s: float = 0.0
    """Unix time of the spot interruption, or 0 if no interruption is scheduled."""
    rebalance_epoch_s: float = 0.0
    """Unix time of the rebalance recommendation, or 0 if the node has not received a recommendation."""

    def report(self) -> NodeReport:
        """Return the node's report for clients, without its injected faults."""
        return NodeReport(
            instance_id=self.spec.instance_id,
            state=self.state,
            address=self.address,
            port=self.port,
            user=self.spec.user,
            host_key=self.host_key,
            reason=self.reason,
        )

    def after(self, reply: Changes) -> "SimulatedNodeRecord":
        """Return a copy of the record with a simulated command's changes applied."""
        timers = tuple(timer for timer in self.timers if timer.unit != reply.disarm)
        if reply.arm is not None:
            timers = (*(timer for timer in timers if timer.unit != reply.arm.unit), reply.arm)
        mounted = self.mounted if reply.mounted is None else (*self.mounted, reply.mounted)
        mounted = tuple(mount for mount in mounted if mount != reply.unmounted)
        installed = tuple(dict.fromkeys((*self.installed, *reply.installed)))
        return replace(self, timers=timers, mounted=mounted, installed=installed)

    def off(self, reason: str, *, unheard: bool) -> "SimulatedNodeRecord":
        """Return a copy of the record as it is after the node powers off."""
        return replace(
            self,
            state="off",
            reason=reason,
            unheard=unheard,
            pid=0,
            pid_started=0,
            timers=(),
            mounted=(),
            booted=False,
            spot_end_epoch_s=0.0,
        )


@dataclass(frozen=True)
class NodePaths:
    """The files of one simulated node on this machine."""

    root: Path

    @property
    def record(self) -> Path:
        """File that stores the node's record."""
        return self.root / "record.json"

    @property
    def console(self) -> Path:
        """File that contains the node's console output."""
        return self.root / "console.log"

    @property
    def host_key(self) -> Path:
        """File that contains the SSH server's private host key."""
        return self.root / "host_key"

    @property
    def disk(self) -> Path:
        """Directory of the node's own files, which is deleted with the node."""
        return self.root / "disk"

    @property
    def run(self) -> Path:
        """Directory shared with the node. It contains sockets and the file `alive`, whose deletion stops the init."""
        return self.root / "run"

    def create(self) -> None:
        """Create the directories, accessible only to their owner, and the file `alive`."""
        for folder in (self.root, self.disk, self.run):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.run / "alive").touch()


class StoredRecord:
    """The current record of a node. Every change is written to the node's record file."""

    def __init__(self, record: SimulatedNodeRecord, path: Path, process: Callable[[], tuple[int, int]]) -> None:
        """Create the object without writing the file.

        Args:
            record: The node's current record.
            path: The record file.
            process: Function that returns the pid and start time of the node's init.
        """
        self.current = record
        self._path = path
        self._process = process

    def change(self, **changes: object) -> None:
        """Change fields of the record, and update the pid and start time of the node's init."""
        pid, started = self._process()
        self._replace(replace(self.current, pid=pid, pid_started=started, **changes))  # type: ignore[arg-type]

    def power_off(self, reason: str, *, unheard: bool) -> None:
        """Record that the node is off."""
        self._replace(self.current.off(reason, unheard=unheard))

    def _replace(self, record: SimulatedNodeRecord) -> None:
        self.current = record
        save(self._path, record)


def save(path: Path, record: SimulatedNodeRecord) -> None:
    """Replace the stored record atomically."""
    write_private(path, _FORMAT.encode(asdict(record) | {"spec": spec_to_json(record.spec)}))


def load(path: Path) -> SimulatedNodeRecord:
    """Read and validate a record."""
    record = decode_as(SimulatedNodeRecord, _FORMAT.read(path, files.RECORD_BYTES))
    for part in (record, record.spec, *record.timers, *record.mounted):
        _check_numbers(part)
    return record


def load_in(folder: Path) -> SimulatedNodeRecord:
    """Read the record in a node's directory."""
    record = load(folder / "record.json")
    if record.spec.instance_id != folder.name:
        message = f"the record belongs to another node, {record.spec.instance_id!r}"
        raise ValueError(message)
    return record


def refuse_newer(instances: Path) -> None:
    """Raise an error if a newer version wrote a node's record. Damaged records are ignored here."""
    for path in sorted(instances.glob("*/record.json")):
        with contextlib.suppress(OSError, ValueError):
            _FORMAT.read(path, files.RECORD_BYTES)


def _check_numbers(part: Any) -> None:  # noqa: ANN401 - any dataclass
    """Reject numbers beyond the range of dates, because date arithmetic with them would crash the host."""
    for field in fields(part):
        value = getattr(part, field.name)
        if isinstance(value, int | float) and not -_LARGEST <= value <= _LARGEST:
            message = f"{field.name} is out of range: {str(value)[:_SHOWN_CHARACTERS]!r}"
            raise ValueError(message)


def write_private(path: Path, content: bytes) -> None:
    """Write a file atomically, readable only by its owner."""
    files.replace(path, content, durable=False)


@dataclass(frozen=True)
class Console:
    """The serial console of a node."""

    path: Path

    def write(self, text: str) -> None:
        """Append text."""
        descriptor = self.open()
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def open(self) -> int:
        """Open the console. Return a descriptor to which programs of the node append their output."""
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def read(self) -> bytes:
        """Return the last 64 KiB with CR LF line endings, as on a serial port, or no bytes if nothing was printed."""
        try:
            with self.path.open("rb") as stream:
                stream.seek(max(0, self.path.stat().st_size - _SHOWN_BYTES))
                text = stream.read()
        except FileNotFoundError:
            return b""
        return text.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")[-_SHOWN_BYTES:]

    def trim(self) -> None:
        """Discard all but the last 64 KiB if the console has grown beyond 4 MiB."""
        if self.path.exists() and self.path.stat().st_size > _LIMIT_BYTES:
            with self.path.open("r+b") as stream:
                stream.seek(-_SHOWN_BYTES, os.SEEK_END)
                kept = stream.read()
                stream.seek(0)
                stream.truncate()
                stream.write(kept)
