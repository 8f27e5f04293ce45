"""What the storage use cases work with, what they are asked for and what they answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from cloudgpu.app.events import Emit
from cloudgpu.app.ports import Ledger, Place
from cloudgpu.app.storage_records import StorageRecord, StorageRecords
from cloudgpu.clock import Clock
from cloudgpu.paths import Home
from cloudgpu.provision.engine import Engine

if TYPE_CHECKING:
    # Only a type: a plan that asks no cloud must not pay for boto3.
    from cloudgpu.aws.stored_parts import Stored


class StorageCloud(Place, Protocol):
    """One target, as these use cases see it."""

    @property
    def engine_asked_for(self) -> str:
        """The engine that the user named; empty when nobody did."""

    def engine(self, record: StorageRecord) -> Engine:
        """The engine that carries this storage's program out, with its tags and identity."""

    def found(self, region: str, name: str = "") -> Sequence[Stored]:
        """What carries storage's tags in a region: of one name, or of every name."""

    def empty(self, one: Stored) -> None:
        """Delete what its bucket holds, where it has one."""

    def end(self, one: Stored) -> list[str]:
        """End every part, data included; returns a line for each that would not end."""

    def attach(self, region: str, volume_id: str, instance_id: str, number: int) -> None:
        """Attach a volume, the so-maniest of this instance; attached already, it is left alone."""


@dataclass(frozen=True)
class StorageContext:
    """What these use cases work with. `owner` and `team` are on the tags of what is made."""

    cloud: StorageCloud
    records: StorageRecords
    home: Home
    clock: Clock
    owner: str
    team: str
    emit: Emit
    ledger: Ledger


@dataclass(frozen=True)
class StorageRequest:
    """What is to be made. `config` holds the settings of the program that its kind needs.

    Attributes:
        made_for: The cluster that it is made for and ends with; empty for what is made by name.
    """

    name: str
    kind: str
    region: str
    disposable: bool
    config: Mapping[str, str]
    made_for: str = ""


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
