"""What the storage use cases work with, what they are asked for and what they answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudgpu.backends.base import Ledger, StorageCloud
from cloudgpu.backends.events import Emit
from cloudgpu.clock import Clock
from cloudgpu.paths import Home
from cloudgpu.state.storage_records import StorageRecord, StorageRecords

if TYPE_CHECKING:
    # Only a type: a plan that asks no cloud must not pay for boto3.
    pass


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
