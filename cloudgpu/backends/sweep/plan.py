"""The plan of a sweep and its result: clusters, and storage and machine images, which outlive clusters. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from cloudgpu.backends.billing.retained_billing import image_monthly_usd
from cloudgpu.backends.lifecycle.results import leftover_lines
from cloudgpu.backends.storage import RetainedResource
from cloudgpu.backends.sweep.cluster_resources import ClusterResources
from cloudgpu.cloud.resources import GLOBAL
from cloudgpu.errors import CloudGpuError, TeardownError

if TYPE_CHECKING:
    # Only for annotations: `--help` must not import boto3.
    from cloudgpu.cloud.resources import OwnImage


def retained_image(image: OwnImage) -> RetainedResource:
    """Convert a machine image to a retained resource."""
    return RetainedResource(
        noun="image",
        name=image.name,
        token=image.tags.get("cloudgpu:token", ""),
        kind=image.tags.get("cloudgpu:gpu-architecture", ""),
        owner=image.owner,
        region=image.region,
        id=image.id,
        since=image.made_at,
        size_gib=Decimal(image.size_gib),
        monthly_usd=image_monthly_usd(image),
    )


@dataclass(frozen=True)
class SweepRequest:
    """The caller and the caller's options, which determine what may be deleted in addition to expired clusters.

    Attributes:
        owners: Owners whose clusters are deleted even before their expiry. If not empty, other owners are ignored.
        all_mine: Whether to delete the caller's running clusters too.
    """

    caller: str
    owners: frozenset[str] = frozenset()
    all_mine: bool = False

    def covers(self, resource: ClusterResources | RetainedResource) -> bool:
        """Return True if the request includes the resource's owner."""
        return not self.owners or resource.owner in self.owners


@dataclass(frozen=True)
class SweepDecision:
    """Whether a resource may be deleted, and the reason."""

    may_delete: bool
    why: str


@dataclass(frozen=True)
class SweepPlan:
    """The decision for each cluster, storage and image that a sweep found.

    Attributes:
        regions: Regions that were searched completely.
        unknown: Regions that could not be searched and may still contain resources, each with the reason.
        clusters: The clusters, each with the decision on whether it may be deleted.
        retained: Storage and images, each with the decision on whether it may be deleted.
        unseen: Regions in which the caller may not list storage and images, each with the reason.
    """

    regions: tuple[str, ...]
    unknown: tuple[tuple[str, str], ...]
    clusters: tuple[tuple[ClusterResources, SweepDecision], ...]
    retained: tuple[tuple[RetainedResource, SweepDecision], ...] = ()
    unseen: tuple[tuple[str, str], ...] = ()

    @property
    def clusters_to_delete(self) -> tuple[ClusterResources, ...]:
        """Clusters that may be deleted."""
        return tuple(cluster for cluster, decision in self.clusters if decision.may_delete)

    @property
    def storage_to_delete(self) -> tuple[RetainedResource, ...]:
        """Storage that may be deleted."""
        return tuple(storage for storage, decision in self.retained if decision.may_delete)


@dataclass(frozen=True)
class SweepResult:
    """The deleted resources, and the resources that could not be deleted, with their errors."""

    ended: tuple[ClusterResources | RetainedResource, ...]
    failed: tuple[tuple[ClusterResources | RetainedResource, CloudGpuError], ...] = ()

    def combined_with(self, other: SweepResult) -> SweepResult:
        """Return the combined results."""
        return SweepResult((*self.ended, *other.ended), (*self.failed, *other.failed))


def sweep_error(plan: SweepPlan, swept: SweepResult) -> TeardownError | None:
    """Return one error that lists undeleted resources and unsearched regions, or None if the sweep is complete."""
    unknown = [f"{region}: unknown: {why}" for region, why in plan.unknown]
    left = [f"{resource.label}: {line}" for resource, err in swept.failed for line in leftover_lines(err)]
    if not unknown and not left:
        return None
    clusters = sum(isinstance(resource, ClusterResources) for resource, _ in swept.failed)
    clauses = [
        _clause(clusters, "cluster is", "clusters are", "not confirmed deleted"),
        _clause(len(swept.failed) - clusters, "piece of storage is", "pieces of storage are", "not confirmed deleted"),
        _unknown_clause(plan),
    ]
    hint = "run `cloudgpu sweep` again to repeat the whole search"
    return TeardownError(" and ".join(clause for clause in clauses if clause), left=[*left, *unknown], hint=hint)


def _unknown_clause(plan: SweepPlan) -> str:
    unreachable = [region for region, _ in plan.unknown if region != GLOBAL]
    if plan.unknown and not unreachable:
        return "IAM could not be searched"
    return _clause(len(unreachable), "region is", "regions are", "unreachable")


def _clause(count: int, singular: str, plural: str, what: str) -> str:
    return f"{count} {singular if count == 1 else plural} {what}" if count else ""
