"""Requests and results of operations on storage that outlives clusters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from cloudgpu.clock import utc_text
from cloudgpu.engine.config import list_setting
from cloudgpu.state.storage_records import StorageRecord


@dataclass(frozen=True)
class StorageRequest:
    """A request to create storage. `config` contains the infrastructure program's settings for this kind of storage.

    Attributes:
        made_for: Name of the cluster whose deletion also deletes the storage; empty if the storage outlives clusters.
        subnets: Zone -> ID of the subnet from which a new file system is mounted; empty if the program chooses them.
            Existing storage keeps its subnets, so they are not compared.
    """

    name: str
    kind: str
    region: str
    disposable: bool
    config: Mapping[str, str]
    made_for: str = ""
    subnets: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def label(self) -> str:
        """Name for messages, such as `efs storage homes`."""
        return f"{self.kind} storage {self.name}"

    @property
    def place(self) -> tuple[str, str]:
        """Region and zone; the zone is empty if the kind is not zonal."""
        return self.region, self.config.get("zone", "")

    @property
    def program_config(self) -> dict[str, str]:
        """The program's settings with the chosen subnets, which the record keeps for a resumed creation."""
        subnets = sorted(self.subnets.values())
        return {**self.config, **({"subnetIds": list_setting(subnets)} if subnets else {})}


@dataclass(frozen=True)
class CreatedStorage:
    """The result of `create`. `made` is False if matching storage already existed."""

    record: StorageRecord
    made: bool


@dataclass(frozen=True)
class DeletedStorage:
    """A confirmed deletion of storage.

    Attributes:
        known: Whether this state home had a record of the storage.
        parts: The deleted AWS resources, for example `efs fs-0abc (available) in us-east-1`.
    """

    name: str
    known: bool
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class StorageRow:
    """One row of `storage list`. None means unknown.

    Attributes:
        state: State according to the cloud; `not found` for a record without tagged resources.
        monthly_usd: Cost of the capacity at the catalog price.
        made_for: Name of the cluster whose deletion also deletes the storage; empty if the storage outlives clusters.
        users: Instances that may be using the storage.
    """

    name: str
    kind: str
    region: str
    owner: str
    state: str
    disposable: bool
    size_gib: Decimal | None
    monthly_usd: Decimal | None
    created_at: datetime | None
    users: tuple[str, ...] | None
    simulated: bool
    id: str = ""
    made_for: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the documented entry of `storage list --json`."""
        return {
            "name": self.name,
            "kind": self.kind,
            "region": self.region,
            "owner": self.owner,
            "state": self.state,
            "disposable": self.disposable,
            "made_for": self.made_for,
            "size_gib": None if self.size_gib is None else str(self.size_gib),
            "monthly_usd": None if self.monthly_usd is None else str(self.monthly_usd),
            "created_at": utc_text(self.created_at) if self.created_at else None,
            "used_by": None if self.users is None else list(self.users),
            "id": self.id,
            "simulated": self.simulated,
        }
