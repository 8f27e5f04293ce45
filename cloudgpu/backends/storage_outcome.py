"""What nodes need to mount a cluster's storage, and what happens to the storage when the cluster is deleted."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from cloudgpu.node.bootstrap.storage_mounts import Mount
from cloudgpu.text import command


@dataclass(frozen=True)
class MountableStorage:
    """What nodes need to mount a recipe's storage.

    Attributes:
        groups: Security groups in addition to the cluster's.
    """

    mounts: tuple[Mount, ...] = ()
    groups: tuple[str, ...] = ()

    @property
    def config(self) -> dict[str, str]:
        """Program settings: security groups, and buckets that the nodes' role may read and write."""
        buckets = [mount for mount in self.mounts if mount.kind == "s3"]
        return {
            "storageSecurityGroupIds": ",".join(self.groups),
            "readable": ",".join(mount.source for mount in buckets),
            "writable": ",".join(mount.source for mount in buckets if not mount.read_only),
        }


NO_STORAGE = MountableStorage()
_KNOWN_SIZE = ("lustre", "ebs")
_CENT = Decimal("0.01")


@dataclass(frozen=True)
class Kept:
    """Storage that outlives the cluster. `monthly_usd` is None if unknown."""

    name: str
    kind: str
    region: str
    monthly_usd: Decimal | None
    simulated: bool

    @property
    def line(self) -> str:
        """One line: what is retained, what it costs, and how to delete it."""
        unknown = "a price that is not known here" if self.kind in _KNOWN_SIZE else "what it holds, by the GiB"
        cost = unknown if self.monthly_usd is None else f"${self.monthly_usd.quantize(_CENT)} a month"
        costs = f"AWS would charge {cost}" if self.simulated else f"it costs {cost}"
        end = command("cloudgpu", "storage", "delete", self.name, "--delete-data")
        return f"storage {self.name} ({self.kind} in {self.region}) stays with its data: {costs}; {end}"

    def as_json(self) -> dict[str, Any]:
        """Return one row of `storage_kept` in `down --json`."""
        usd = None if self.monthly_usd is None else str(self.monthly_usd)
        return {"name": self.name, "kind": self.kind, "region": self.region, "monthly_usd": usd}


@dataclass(frozen=True)
class Settled:
    """What happened to a cluster's storage when the cluster was deleted."""

    ended: tuple[str, ...] = ()
    kept: tuple[Kept, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """One line for each retained storage."""
        return tuple(kept_storage.line for kept_storage in self.kept)


NOTHING = Settled()
