"""Results of operations on clusters, and the resources that `plan --resources` lists."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from cloudgpu.backends.storage import NO_STORAGE_OUTCOME, StorageOutcome
from cloudgpu.errors import CloudGpuError
from cloudgpu.launch.inventory import Inventory
from cloudgpu.state.cluster_record import ClusterRecord


@dataclass(frozen=True)
class ProvisionedCluster:
    """A running cluster."""

    record: ClusterRecord
    inventory: Inventory
    made: bool
    """Whether this call created the cluster."""
    tried: tuple[str, ...] = ()
    """One line per candidate that could not be launched."""


@dataclass(frozen=True)
class ExtensionResult:
    """The confirmed result of `extend`.

    Attributes:
        before: Previous expiry, UTC.
        worst_case_usd: Cost if the cluster runs until its new expiry.
    """

    record: ClusterRecord
    before: datetime
    worst_case_usd: Decimal


@dataclass(frozen=True)
class DeletionResult:
    """The confirmed result of `down`.

    Attributes:
        known: True if this state home had a record of the cluster.
        instances: The recorded instances, which are terminated, or the names of the released self-managed hosts.
        orphans: Deleted resources that no local record listed, or hosts that had a lease without a local record.
        usd: Total cost of the cluster; nothing was charged if `simulated` is True.
    """

    cluster: str
    known: bool
    instances: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()
    usd: Decimal = Decimal(0)
    simulated: bool = False
    run_id: str = ""
    """ID of the run for which `train` created the cluster; empty otherwise."""
    storage: StorageOutcome = NO_STORAGE_OUTCOME
    """Deleted and retained storage of the cluster."""
    estimated: bool = False
    """Whether the cost is an upper bound, because the cloud did not report when a resource was deleted."""
    unsaved: tuple[str, ...] = ()
    """Changes to the state home that failed, one line each."""
    target: str = ""
    """Target on which the cluster was searched for; empty if it had a record."""
    searched: tuple[str, ...] = ()
    """Regions that were searched; empty for self-managed hosts."""
    other_targets: tuple[str, ...] = ()
    """Other targets on which a cluster with this name has open ledger rows; empty if this one had a record."""
    own: bool = False
    """Whether the cluster ran on self-managed hosts, which confirmed the release of their leases."""

    def as_json(self) -> dict[str, Any]:
        """Return the documented output of `down --json`. `left` is always empty, because `down` fails otherwise."""
        return {
            "cluster": self.cluster,
            "run_id": self.run_id,
            "known": self.known,
            "instances_ended": list(self.instances),
            "strays_ended": list(self.orphans),
            "storage_ended": list(self.storage.ended),
            "storage_kept": [kept_storage.retained_json() for kept_storage in self.storage.kept],
            "cost": {"usd": str(self.usd), "simulated": self.simulated, "estimated": self.estimated},
            "simulated": self.simulated,
            "left": [],
        }


@dataclass(frozen=True)
class ResourceForecast:
    """A resource that `up` would create."""

    type: str
    """Pulumi resource type."""
    name: str

    def as_json(self) -> dict[str, str]:
        """Return the documented JSON form."""
        return {"type": self.type, "name": self.name}


def leftover_lines(err: CloudGpuError) -> tuple[str, ...]:
    """Return one line per remaining resource that the error lists, or the error's message if it lists none."""
    return tuple(getattr(err, "left", ())) or (err.message,)
