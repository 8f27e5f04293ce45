"""The context of operations on storage."""

from __future__ import annotations

from dataclasses import dataclass

from cloudgpu.backends.aws.ports import StorageCloud
from cloudgpu.backends.billing.cost_ledger import CostLedger
from cloudgpu.backends.events import Emit
from cloudgpu.clock import Clock
from cloudgpu.paths import Home
from cloudgpu.state.storage_records import StorageRecords


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
