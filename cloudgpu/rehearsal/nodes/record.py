"""What the host keeps about a node, so that its successor finds the node again."""

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Protocol

from cloudgpu import files
from cloudgpu.decoding import decoded
from cloudgpu.rehearsal.node_spec import NodeSpec
from cloudgpu.rehearsal.nodes.mounts.shared_folders import Mounted
from cloudgpu.rehearsal.nodes.values import NodeReport, PowerState, spec_to_json

_LARGEST: Final = 253_402_300_799
"""The last second that a date can name; no other number of a record comes near it."""
_SHOWN: Final = 40


@dataclass(frozen=True)
class Timer:
    """A unit that fires at an absolute time on the host's clock; `command` is what it runs inside the node."""

    unit: str
    due_epoch_s: float
    command: tuple[str, ...]


class Changes(Protocol):
    """What a stand-in does to its node, as far as the record goes."""

    @property
    def disarm(self) -> str:
        """A timer's unit, or nothing."""

    @property
    def arm(self) -> Timer | None:
        """A timer."""

    @property
    def mounted(self) -> Mounted | None:
        """A mount."""

    @property
    def unmounted(self) -> Mounted | None:
        """A mount that is no more."""

    @property
    def installed(self) -> tuple[str, ...]:
        """Packages."""


@dataclass(frozen=True)
class NodeRecord:
    """One node. `pid` and `pid_started` name its init; 0 where it has none."""

    spec: NodeSpec
    address: str
    port: int
    metadata_port: int
    host_key: str
    isolation: str
    state: PowerState = "off"
    reason: str = ""
    unheard: bool = False
    """It ended by itself and nobody was told yet."""
    scripts_done: bool = False
    booted: bool = False
    """The boot went through to its end; a host that finds it otherwise boots the node again."""
    disk: bool = True
    pid: int = 0
    pid_started: int = 0
    timers: tuple[Timer, ...] = ()
    mounted: tuple[Mounted, ...] = ()
    """Until it loses its power."""
    installed: tuple[str, ...] = ()
    """Packages that its stand-ins remember, those of its image first; gone with its disk."""
    spot_end_epoch_s: float = 0.0
    """When AWS takes the spot node back; 0 while it does not."""
    rebalance_epoch_s: float = 0.0
    """When AWS recommended to leave it; 0 while it did not."""

    def report(self) -> NodeReport:
        """The record as callers see it."""
        return NodeReport(
            instance_id=self.spec.instance_id,
            state=self.state,
            address=self.address,
            port=self.port,
            user=self.spec.user,
            host_key=self.host_key,
            reason=self.reason,
        )

    def after(self, reply: "Changes") -> "NodeRecord":
        """The record of the node after what a stand-in did."""
        timers = tuple(timer for timer in self.timers if timer.unit != reply.disarm)
        if reply.arm is not None:
            timers = (*(timer for timer in timers if timer.unit != reply.arm.unit), reply.arm)
        mounted = self.mounted if reply.mounted is None else (*self.mounted, reply.mounted)
        mounted = tuple(one for one in mounted if one != reply.unmounted)
        installed = tuple(dict.fromkeys((*self.installed, *reply.installed)))
        return replace(self, timers=timers, mounted=mounted, installed=installed)

    def off(self, reason: str, *, unheard: bool) -> "NodeRecord":
        """The record of the same node without power."""
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
    """The files of one node on its machine."""

    root: Path

    @property
    def record(self) -> Path:
        """The record."""
        return self.root / "record.json"

    @property
    def console(self) -> Path:
        """Everything that the node printed while booting."""
        return self.root / "console.log"

    @property
    def host_key(self) -> Path:
        """The private key of its SSH server."""
        return self.root / "host_key"

    @property
    def disk(self) -> Path:
        """What the node wrote; gone when the node is."""
        return self.root / "disk"

    @property
    def run(self) -> Path:
        """Seen by the node as well: its end of the socket to the host, and the sign that the host's files exist."""
        return self.root / "run"

    def create(self) -> None:
        """Make the folders, private to their owner.

        Raises:
            OSError: The disk is full or not writable.
        """
        for folder in (self.root, self.disk, self.run):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.run / "alive").touch()


def save(path: Path, record: NodeRecord) -> None:
    """Replace the stored record at once, or leave the old one.

    Raises:
        OSError: The disk is full or not writable.
    """
    values = asdict(record) | {"spec": spec_to_json(record.spec)}
    write_private(path, json.dumps(values))


def load(path: Path) -> NodeRecord:
    """Read a record.

    Raises:
        OSError: It is not there.
        ValueError: It is damaged, or lacks something.
    """
    record = decoded(NodeRecord, files.read_json(path))
    for part in (record, record.spec, *record.timers, *record.mounted):
        _check_numbers(part)
    return record


def load_in(folder: Path) -> NodeRecord:
    """Read the record in a node's folder.

    Raises:
        OSError, ValueError: As `load`; ValueError too where it is another node's.
    """
    record = load(folder / "record.json")
    if record.spec.instance_id != folder.name:
        message = f"the record of another node, {record.spec.instance_id!r}"
        raise ValueError(message)
    return record


def _check_numbers(part: Any) -> None:  # noqa: ANN401 - any dataclass
    """Refuse a number that no date can be made of: it would end the host when it is first computed with.

    Raises:
        ValueError: There is one.
    """
    for field in fields(part):
        value = getattr(part, field.name)
        if isinstance(value, int | float) and not -_LARGEST <= value <= _LARGEST:
            message = f"{field.name} is {str(value)[:_SHOWN]!r}"
            raise ValueError(message)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, as a whole or not at all.

    Raises:
        OSError: The disk is full or not writable.
    """
    files.replace(path, text.encode(), durable=False)
