"""The plan of a sweep and its result: clusters, and storage and machine images, which outlive clusters. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from cloudgpu.aws.ec2.tagged_types import GLOBAL
from cloudgpu.backends.billing.retained_prices import image_monthly_usd, storage_monthly_usd
from cloudgpu.backends.lifecycle.results import leftover_lines
from cloudgpu.backends.sweep.cluster_resources import ClusterResources
from cloudgpu.errors import CloudGpuError, TeardownError
from cloudgpu.text import command

if TYPE_CHECKING:
    # Only for annotations: `--help` must not import boto3.
    from cloudgpu.aws.ec2.machine_images import OwnImage
    from cloudgpu.aws.storage.storage_tags import TaggedStorage


@dataclass(frozen=True)
class RetainedResource:
    """Storage or a machine image, as described by its tags. Both outlive clusters.

    Attributes:
        kind: `efs`, `lustre`, `ebs` or `s3` for storage; the GPU architecture for an image.
        since: Creation time, or None if unknown.
        size_gib: Size in GiB, or None if unknown.
        monthly_usd: Cost per month, or None if unknown; an upper bound for an image.
        made_for: Name of the cluster whose deletion also deletes the resource, or empty.
        users: Instances that may be using the resource; also empty if unknown.
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
    users: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Noun and name, for example `storage sets`."""
        return f"{self.noun} {self.name}"

    @property
    def delete_command(self) -> str:
        """Command that deletes the resource."""
        kept = [] if self.disposable or self.noun == "image" else ["--delete-data"]
        return command("cloudgpu", self.noun, "delete", self.name, "--region", self.region, *kept)

    def as_json(self, now: datetime) -> dict[str, Any]:
        """Return the documented entry of `sweep --json`."""
        return {
            "name": self.name,
            "kind": self.kind,
            "owner": self.owner or None,
            "region": self.region,
            "id": self.id,
            "age_s": round((now - self.since).total_seconds()) if self.since else None,
            "size_gib": None if self.size_gib is None else str(self.size_gib),
            "monthly_usd": None if self.monthly_usd is None else str(self.monthly_usd),
            "disposable": self.disposable,
            "made_for": self.made_for,
            "used_by": list(self.users),
            "ends_by": self.delete_command,
        }


def retained_storage(stored: TaggedStorage) -> RetainedResource:
    """Convert storage to a retained resource."""
    data = stored.data
    return RetainedResource(
        noun="storage",
        name=stored.name,
        token=stored.token,
        kind=stored.kind,
        owner=stored.tag("cloudgpu:owner"),
        region=stored.region,
        id=data.id if data else "",
        since=data.created_at if data else None,
        size_gib=data.size_gib if data else Decimal(0),
        monthly_usd=storage_monthly_usd(stored),
        disposable=stored.disposable,
        made_for=stored.made_for,
        users=stored.users or (),
    )


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
