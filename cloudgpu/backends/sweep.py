"""What a sweep found, grouped by cluster, with owner, expiry and cost; its plan; and its result. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from cloudgpu import bounds
from cloudgpu.backends.billing.retained_billing import image_monthly_usd
from cloudgpu.backends.lifecycle.results import leftover_lines
from cloudgpu.backends.storage import RetainedResource
from cloudgpu.catalog.catalog import Catalog
from cloudgpu.catalog.prices_and_quotas import HOURS_PER_MONTH, PriceKey, other_price
from cloudgpu.clock import utc_text
from cloudgpu.cloud import CLUSTER_TAG, GLOBAL, OWNER_TAG, TOKEN_TAG, TaggedResource
from cloudgpu.errors import CloudGpuError, TeardownError
from cloudgpu.launch.inventory import ALIVE_STATES

if TYPE_CHECKING:
    from cloudgpu.cloud import OwnImage


_EXPIRES: Final = "cloudgpu:expires-at"
_KEPT: Final = "cloudgpu:storage"
"""Tag on storage, which contains data and outlives clusters. A sweep never deletes storage as part of a cluster."""
_HOURS_A_MONTH: Final = 730
_EXACT: Final = Decimal("0.0001")
_GRACE: Final = timedelta(minutes=10)
"""Grace period after the expiry, so that the nodes' timers and the expiry schedule terminate nodes before a sweep."""
_BY_THE_HOUR: Final[Mapping[str, PriceKey]] = {
    "elastic-ip": "public_ipv4_hour_usd",
    "nat-gateway": "nat_gateway_hour_usd",
}
_PUBLIC_IP: Final = "public-ip"
"""Kind of the addresses that AWS assigns to an instance and bills until the instance stops. They have no tags."""
BILLED_KINDS: Final = frozenset({"volume", *_BY_THE_HOUR})
"""Resource kinds, other than instances, that AWS charges for."""


@dataclass(frozen=True)
class ClusterResources:
    """A cluster as described by the tags of its resources or, if none was found, by its ledger rows.

    Attributes:
        expires_at: Expiry, or None if the tag is missing or invalid.
        since: Creation time of the oldest resource, or None if unknown.
        hourly_usd: Cost per hour, or None if the price of an instance is unknown.
        spent_usd: Cost so far: by the ledger if it has the cluster's rows, otherwise of the remaining resources. None
            if a creation time or an instance's price is unknown.
        unreadable_expiry: Value of an invalid expiry tag, or empty.
        unpriced: Resource kinds, other than instances, with an unknown price. The totals exclude them.
        billed_in: Regions of the cluster's open ledger rows if no resource was found, otherwise empty.
        may_appear_until: Time until which a launch for the open rows may still appear; None if a resource was found.
    """

    cluster: str
    token: str
    owner: str
    team: str
    run: str
    expires_at: datetime | None
    since: datetime | None
    things: tuple[TaggedResource, ...]
    hourly_usd: Decimal | None
    spent_usd: Decimal | None
    unpriced: tuple[str, ...]
    billed_in: tuple[str, ...] = ()
    may_appear_until: datetime | None = None
    unreadable_expiry: str = ""

    @property
    def label(self) -> str:
        """Name of the cluster."""
        return self.cluster

    @property
    def owners(self) -> frozenset[str]:
        """Every owner in the tags of the cluster's resources. Several owners mean that a user edited or copied tags."""
        return frozenset({self.owner, *(resource.tags.get(OWNER_TAG, "") for resource in self.things)} - {""})

    @property
    def instances(self) -> tuple[TaggedResource, ...]:
        """Running and pending instances."""
        return tuple(
            resource for resource in self.things if resource.kind == "instance" and resource.state in ALIVE_STATES
        )

    @property
    def regions(self) -> tuple[str, ...]:
        """Regions with resources or open ledger rows; `global` for IAM."""
        return tuple(sorted({*self.billed_in, *(resource.region for resource in self.things)}))

    @property
    def monthly_usd(self) -> Decimal | None:
        """Cost per month, or None if the price of an instance is unknown."""
        return None if self.hourly_usd is None else self.hourly_usd * _HOURS_A_MONTH

    def expired(self, now: datetime) -> bool:
        """Return True if the cluster is past its expiry by more than the grace period."""
        return self.expires_at is not None and self.expires_at + _GRACE <= now

    def as_json(self, now: datetime) -> dict[str, Any]:
        """Return the documented entry of `sweep --json`."""
        return {
            "cluster": self.cluster,
            "owner": self.owner or None,
            "team": self.team,
            "run_id": self.run,
            "regions": list(self.regions),
            "expires_at": utc_text(self.expires_at) if self.expires_at else None,
            "expired": self.expired(now),
            "unreadable_expiry": self.unreadable_expiry or None,
            "age_s": round((now - self.since).total_seconds()) if self.since else None,
            "instances": [
                {
                    "id": resource.id,
                    "instance_type": resource.instance_type,
                    "market": resource.market,
                    "region": resource.region,
                    "state": resource.state,
                }
                for resource in self.instances
            ],
            "things": dict(sorted(Counter(resource.kind for resource in self.things).items())),
            "hourly_usd": _text(self.hourly_usd),
            "spent_usd": _text(self.spent_usd),
            "monthly_usd": _text(self.monthly_usd),
            "unpriced": list(self.unpriced),
            "only_in_ledger": bool(self.billed_in),
        }


def group_by_cluster(found: Iterable[TaggedResource], catalog: Catalog, now: datetime) -> tuple[ClusterResources, ...]:
    """Group resources by the cluster's name and token, the most expensive cluster first. Storage is omitted."""

    def key(resource: TaggedResource) -> tuple[str, str]:
        return resource.tags[CLUSTER_TAG], resource.tags.get(TOKEN_TAG, "")

    tagged = sorted(
        (resource for resource in found if CLUSTER_TAG in resource.tags and _KEPT not in resource.tags), key=key
    )
    clusters = [
        _cluster(name, token, tuple(things), catalog, now) for (name, token), things in groupby(tagged, key=key)
    ]
    by_cost = sorted(
        clusters, key=lambda cluster: (-(cluster.hourly_usd or Decimal(0)), cluster.cluster, cluster.token)
    )
    return tuple(by_cost)


def _cluster(
    name: str, token: str, things: tuple[TaggedResource, ...], catalog: Catalog, now: datetime
) -> ClusterResources:
    tags = next((resource.tags for resource in things if resource.kind == "instance"), things[0].tags)
    running = [resource for resource in things if resource.kind == "instance" and resource.state in ALIVE_STATES]
    since = min((resource.since for resource in things if resource.since is not None), default=None)
    surcharges = [
        # AWS does not report when an Elastic IP was allocated; assume that it is as old as the cluster.
        *((r.kind, r.since or since, _surcharge(r)) for r in things if r.kind in BILLED_KINDS),
        *((_PUBLIC_IP, r.since, _public_ip_price(r)) for r in running if r.public_addresses),
    ]
    prices = [
        *((resource.since, _price(resource, catalog)) for resource in running),
        *((created_at, price) for _, created_at, price in surcharges if price is not None),
    ]
    return ClusterResources(
        cluster=name,
        token=token,
        owner=tags.get(OWNER_TAG, ""),
        team=tags.get("cloudgpu:team", ""),
        run=tags.get("cloudgpu:run", ""),
        expires_at=_expiry(things),
        unreadable_expiry=_unreadable_expiry(things),
        since=since,
        things=things,
        hourly_usd=_sum([price for _, price in prices]),
        spent_usd=_sum([_spent(created_at, price, now) for created_at, price in prices]),
        unpriced=tuple(sorted({kind for kind, _, price in surcharges if price is None})),
    )


def _expiry(things: Sequence[TaggedResource]) -> datetime | None:
    """Return the latest expiry tag, because an interrupted extension may have updated only some of the tags."""
    expiries = [_utc(resource.tags) for resource in things]
    return max((at for at in expiries if at is not None), default=None)


def _utc(tags: Mapping[str, str]) -> datetime | None:
    try:
        return bounds.parse_tag_time(tags.get(_EXPIRES, ""))
    except ValueError:
        return None


def _unreadable_expiry(things: Sequence[TaggedResource]) -> str:
    """Return the first invalid expiry tag, or an empty string."""
    return next(
        (resource.tags[_EXPIRES] for resource in things if resource.tags.get(_EXPIRES) and _utc(resource.tags) is None),
        "",
    )


def _price(instance: TaggedResource, catalog: Catalog) -> Decimal | None:
    """Return an on-demand instance's price in USD per hour; None if unknown or if the instance is not on-demand."""
    instance_type = catalog.types.get(instance.instance_type)
    return (
        instance_type.on_demand_usd.get(instance.region)
        if instance_type is not None and instance.market == "on-demand"
        else None
    )


def _public_ip_price(instance: TaggedResource) -> Decimal | None:
    """Return the list price in USD per hour of the addresses that AWS assigned to an instance, or None if unknown."""
    price = other_price("public_ipv4_hour_usd", instance.region)
    return price.usd * instance.public_addresses if price else None


def _surcharge(resource: TaggedResource) -> Decimal | None:
    """Return the list price in USD per hour of a resource other than an instance, or None if unknown."""
    if resource.kind != "volume":
        price = other_price(_BY_THE_HOUR[resource.kind], resource.region)
        return price.usd if price else None
    price = other_price("gp3_gib_month_usd", resource.region) if resource.volume_type == "gp3" else None
    if price is None or resource.size_gib is None:
        return None
    return (price.usd * resource.size_gib / HOURS_PER_MONTH).quantize(_EXACT)


def _spent(since: datetime | None, price: Decimal | None, now: datetime) -> Decimal | None:
    if price is None or since is None:
        return None
    hours = Decimal(str(max(0.0, (now - since).total_seconds()))) / 3600
    return (price * hours).quantize(Decimal("0.01"))


def _sum(amounts: Sequence[Decimal | None]) -> Decimal | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known, Decimal(0)) if len(known) == len(amounts) else None


def _text(usd: Decimal | None) -> str | None:
    return None if usd is None else str(usd)


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
