"""Storage and images that outlive clusters: requests, results, mounts, and what the deletion of a cluster retains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from cloudgpu.clock import utc_text
from cloudgpu.engine.config import RoleGrants, list_setting
from cloudgpu.node.boot_mounts import Mount
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
class RetainedResource:
    """Storage or a machine image, as its tags or its record describe it. Both outlive clusters. None means unknown.

    Attributes:
        kind: `efs`, `lustre`, `ebs` or `s3` for storage; the GPU architecture for an image.
        since: Creation time.
        monthly_usd: Cost of the capacity at the catalog price; an upper bound for an image.
        made_for: Name of the cluster whose deletion also deletes the storage; empty if it outlives clusters.
        users: Instances that may be using the storage.
        state: State according to the cloud; `not found` for a record without tagged resources; empty for an image.
    """

    noun: Literal["storage", "image"]
    name: str
    token: str
    kind: str
    owner: str
    region: str
    id: str
    since: datetime | None
    size_gib: Decimal | None
    monthly_usd: Decimal | None
    disposable: bool = False
    made_for: str = ""
    users: tuple[str, ...] | None = ()
    state: str = ""
    simulated: bool = False

    @property
    def label(self) -> str:
        """Noun and name, for example `storage sets`."""
        return f"{self.noun} {self.name}"

    @property
    def delete_command(self) -> str:
        """Command that deletes the resource."""
        kept = [] if self.disposable or self.noun == "image" else ["--delete-data"]
        return command("cloudgpu", self.noun, "delete", self.name, "--region", self.region, *kept)

    @property
    def retained_line(self) -> str:
        """One line of `down` about storage that is retained: its cost, and the command that deletes it."""
        unknown = "an unknown amount" if self.kind in _KNOWN_SIZE else "per GiB stored"
        cost = unknown if self.monthly_usd is None else f"${self.monthly_usd.quantize(_CENT)} a month"
        costs = f"AWS {'would charge' if self.simulated else 'charges'} {cost}"
        delete = command("cloudgpu", "storage", "delete", self.name, "--delete-data")
        return f"{self.label} ({self.kind} in {self.region}) is retained with its data: {costs}; to delete it: {delete}"

    def retained_json(self) -> dict[str, Any]:
        """Return one row of `storage_kept` in `down --json`."""
        return {"name": self.name, "kind": self.kind, "region": self.region, "monthly_usd": _text(self.monthly_usd)}

    def storage_json(self) -> dict[str, Any]:
        """Return the documented entry of `storage list --json`."""
        return {
            "name": self.name,
            "kind": self.kind,
            "region": self.region,
            "owner": self.owner,
            "state": self.state,
            "disposable": self.disposable,
            "made_for": self.made_for,
            "size_gib": _text(self.size_gib),
            "monthly_usd": _text(self.monthly_usd),
            "created_at": utc_text(self.since) if self.since else None,
            "used_by": None if self.users is None else list(self.users),
            "id": self.id,
            "simulated": self.simulated,
        }

    def sweep_json(self, now: datetime) -> dict[str, Any]:
        """Return the documented entry of `sweep --json`."""
        return {
            "name": self.name,
            "kind": self.kind,
            "owner": self.owner or None,
            "region": self.region,
            "id": self.id,
            "age_s": round((now - self.since).total_seconds()) if self.since else None,
            "size_gib": _text(self.size_gib),
            "monthly_usd": _text(self.monthly_usd),
            "disposable": self.disposable,
            "made_for": self.made_for,
            "used_by": list(self.users or ()),
            "ends_by": self.delete_command,
        }


def _text(amount: Decimal | None) -> str | None:
    return None if amount is None else str(amount)


@dataclass(frozen=True)
class StorageOutcome:
    """What happened to a cluster's storage when the cluster was deleted."""

    ended: tuple[str, ...] = ()
    kept: tuple[RetainedResource, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """One line for each storage resource that is retained."""
        return tuple(kept_storage.retained_line for kept_storage in self.kept)


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
