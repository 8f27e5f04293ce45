"""The mounts of a cluster's storage, and what happens to the storage when the cluster is deleted."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from cloudgpu.engine.role_grants import RoleGrants
from cloudgpu.node.bootstrap.storage_mounts import Mount
from cloudgpu.text import command


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
_KNOWN_SIZE = ("lustre", "ebs")
_CENT = Decimal("0.01")


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
