"""Context, requests and results of the storage use cases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cloudgpu.backends.base import CostLedger, StorageCloud
from cloudgpu.backends.events import Emit
from cloudgpu.clock import Clock
from cloudgpu.paths import Home
from cloudgpu.state.storage_records import StorageRecord, StorageRecords


@dataclass(frozen=True)
class StorageContext:
    """The dependencies of the storage use cases. `owner` and `team` become tags of created storage."""

    cloud: StorageCloud
    records: StorageRecords
    home: Home
    clock: Clock
    owner: str
    team: str
    emit: Emit
    ledger: CostLedger


@dataclass(frozen=True)
class StorageRequest:
    """A request to create storage. `config` contains the program settings for this kind of storage.

    Attributes:
        made_for: Name of the cluster whose deletion also deletes the storage; empty if the storage outlives clusters.
    """

    name: str
    kind: str
    region: str
    disposable: bool
    config: Mapping[str, str]
    made_for: str = ""


@dataclass(frozen=True)
class CreatedStorage:
    """The result of `create`. `made` is False if matching storage already existed."""

    record: StorageRecord
    made: bool


@dataclass(frozen=True)
class DeletedStorage:
    """A confirmed deletion. `known` is True if this state home had a record of the storage."""

    name: str
    known: bool
    parts: tuple[str, ...] = ()
