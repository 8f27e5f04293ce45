"""Storage that outlives clusters: requests, results, mounts, and what happens when a cluster is deleted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from cloudgpu.clock import utc_text
from cloudgpu.engine.config import RoleGrants, list_setting
from cloudgpu.node.bootstrap.rendering import Mount
from cloudgpu.state.storage_records import StorageRecord
from cloudgpu.text import command

_KNOWN_SIZE = ("lustre", "ebs")
_CENT = Decimal("0.01")


@dataclass(frozen=True)
class MountableStorage:
    """Mounts and security groups that the nodes need for a recipe's storage.

    Attributes:
        groups: Security groups that the nodes need in addition to the cluster's.
    """

    mounts: tuple[Mount, ...] = ()
    groups: tuple[str, ...] = ()

    @property
    def grants(self) -> RoleGrants:
        """The buckets that the nodes may read or write."""
        buckets = [mount for mount in self.mounts if mount.kind == "s3"]
        return RoleGrants(
            tuple(mount.source for mount in buckets),
            tuple(mount.source for mount in buckets if not mount.read_only),
        )


NO_STORAGE = MountableStorage()


@dataclass(frozen=True)
class RetainedStorage:
    """Storage that outlives the cluster. `monthly_usd` is None if the price is unknown or depends on usage."""

    name: str
    kind: str
    region: str
    monthly_usd: Decimal | None
    simulated: bool

    @property
    def line(self) -> str:
        """One line with the storage, its cost, and the command that deletes it."""
        unknown = "an unknown amount" if self.kind in _KNOWN_SIZE else "per GiB stored"
        cost = unknown if self.monthly_usd is None else f"${self.monthly_usd.quantize(_CENT)} a month"
        costs = f"AWS {'would charge' if self.simulated else 'charges'} {cost}"
        delete = command("cloudgpu", "storage", "delete", self.name, "--delete-data")
        storage = f"storage {self.name} ({self.kind} in {self.region})"
        return f"{storage} is retained with its data: {costs}; to delete it: {delete}"

    def as_json(self) -> dict[str, Any]:
        """Return one row of `storage_kept` in `down --json`."""
        usd = None if self.monthly_usd is None else str(self.monthly_usd)
        return {"name": self.name, "kind": self.kind, "region": self.region, "monthly_usd": usd}


@dataclass(frozen=True)
class StorageOutcome:
    """What happened to a cluster's storage when the cluster was deleted."""

    ended: tuple[str, ...] = ()
    kept: tuple[RetainedStorage, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """One line for each storage resource that is retained."""
        return tuple(kept_storage.line for kept_storage in self.kept)


NO_STORAGE_OUTCOME = StorageOutcome()


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
