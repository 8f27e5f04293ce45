"""What the storage use cases work with, what they are asked for and what they answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cloudgpu.app.happenings import Say
from cloudgpu.app.storage_records import StorageRecord, StorageRecords
from cloudgpu.aws.stored import Stored
from cloudgpu.clock import Clock
from cloudgpu.paths import Home
from cloudgpu.plan.plan import Target
from cloudgpu.provision.engine import Engine


class StorageCloud(Protocol):
    """One target, as these use cases see it."""

    @property
    def target(self) -> Target:
        """`aws` or `rehearsal`."""

    @property
    def endpoint(self) -> str:
        """What tells this endpoint from others of the same account id; empty for the real AWS."""

    def account(self) -> str:
        """Account id of the credentials in use."""

    def engine(self, record: StorageRecord) -> Engine:
        """The engine that carries this storage's program out, with its tags and identity."""

    def found(self, region: str, name: str = "") -> Sequence[Stored]:
        """What carries storage's tags in a region: of one name, or of every name."""

    def empty(self, one: Stored) -> None:
        """Delete what its bucket holds, where it has one."""

    def end(self, one: Stored) -> list[str]:
        """End every part, data included; returns a line for each that would not end."""


@dataclass(frozen=True)
class StorageDesk:
    """What these use cases work with. `owner` and `team` are on the tags of what is made."""

    cloud: StorageCloud
    records: StorageRecords
    home: Home
    clock: Clock
    owner: str
    team: str
    say: Say


@dataclass(frozen=True)
class Wish:
    """What is to be made. `config` holds the settings of the program that its kind needs."""

    name: str
    kind: str
    region: str
    disposable: bool
    config: Mapping[str, str]


@dataclass(frozen=True)
class Created:
    """Storage that stands. `made` is False when it stood already, as it was asked for."""

    record: StorageRecord
    made: bool


@dataclass(frozen=True)
class Deleted:
    """What a deletion ended and confirmed. `known` says whether this home had a record of it."""

    name: str
    known: bool
    parts: tuple[str, ...] = ()
