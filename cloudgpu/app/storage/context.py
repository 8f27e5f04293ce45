"""Context, requests and results of the storage use cases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudgpu.backends.base import CostLedger, StorageCloud
from cloudgpu.backends.events import Emit
from cloudgpu.clock import Clock
from cloudgpu.paths import Home
from cloudgpu.state.storage_records import StorageRecord, StorageRecords

if TYPE_CHECKING:
    # Only for annotations: an offline plan must not import boto3.
    pass


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
    """Storage to create. `config` contains the program settings that its kind needs.

    Attributes:
        made_for: Name of the cluster with which the storage is deleted; empty for storage created by name.
    """

    name: str
    kind: str
    region: str
    disposable: bool
    config: Mapping[str, str]
    made_for: str = ""


@dataclass(frozen=True)
class CreatedStorage:
    """Created storage. `made` is False if matching storage already existed."""

    record: StorageRecord
    made: bool


@dataclass(frozen=True)
class DeletedStorage:
    """A confirmed deletion. `known` is True if this state home had a record of the storage."""

    name: str
    known: bool
    parts: tuple[str, ...] = ()
