"""Decide from what a sweep found which clusters, storage and images it may delete, and why. No I/O.

Rows of the ledger remain open if a command was killed before its first launch, or if a state home was lost and the
nodes of its clusters then terminated at their expiry.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from itertools import groupby

from cloudgpu.backends.billing.costs import billed_usd
from cloudgpu.backends.storage import RetainedResource
from cloudgpu.backends.sweep import ClusterResources, SweepDecision, SweepPlan, SweepRequest, group_by_cluster
from cloudgpu.catalog.catalog import Catalog
from cloudgpu.cloud import CLUSTER_TAG, GLOBAL, TOKEN_TAG, TaggedResource
from cloudgpu.engine.direct.deployment import RETRY_PERIOD, delays_at, launch_visible_by
from cloudgpu.ledger.entry import LedgerEntry
from cloudgpu.text import command


@dataclass(frozen=True)
class SearchCoverage:
    """The parts of an account that a search covered.

    Attributes:
        regions: Regions in which every request succeeded.
        tokens: Tokens of all clusters with at least one resource.
    """

    regions: Set[str]
    tokens: Set[str]


def clusters_without_resources(
    entries: Sequence[LedgerEntry], endpoint: str, searched: SearchCoverage
) -> tuple[ClusterResources, ...]:
    """Return the clusters that have open ledger rows but no resources.

    A cluster with an open row in a region that was not searched completely is omitted, because the region may still
    contain resources of the cluster.

    Args:
        entries: Every row, open or closed, of the account's clusters that have an open row.
        endpoint: Endpoint of the account; empty for AWS.
        searched: The parts of the account that were searched.
    """
    rows = sorted((row for row in entries if cluster_token(row) not in searched.tokens), key=cluster_of)
    clusters = [(name, token, tuple(group)) for (name, token), group in groupby(rows, key=cluster_of)]
    return tuple(
        _cluster_resources(name, token, opened, latest_appearance(group, endpoint))
        for name, token, group in clusters
        if (opened := [row for row in group if is_open(row)])
        if {row.spending.region for row in opened} <= searched.regions
    )


def is_open(row: LedgerEntry) -> bool:
    """Return True if the row was opened for nodes and is not closed."""
    return row.state == "open" and row.spending.nodes > 0


def cluster_token(row: LedgerEntry) -> str:
    """Return the token of the cluster that a row was opened for."""
    return row.spending.entry_id.partition("/")[0]


def latest_appearance(rows: Sequence[LedgerEntry], endpoint: str) -> datetime:
    """Return the latest time at which a launch for these rows can become visible to a search.

    The process that opened the rows may still be running and may retry the launch.
    """
    delays = delays_at(endpoint)
    opened = [row.spending.opened_at for row in rows]
    return max(launch_visible_by(at, at + RETRY_PERIOD, delays) for at in opened)


def cluster_of(row: LedgerEntry) -> tuple[str, str]:
    """Return the name and the token of the cluster that a row was opened for."""
    return row.spending.cluster, cluster_token(row)


def _cluster_resources(
    name: str, token: str, rows: Sequence[LedgerEntry], may_appear_until: datetime
) -> ClusterResources:
    first = rows[0].spending
    return ClusterResources(
        cluster=name,
        token=token,
        owner=first.owner,
        team=first.team,
        run=first.run_id,
        expires_at=max(row.spending.expires_at for row in rows),
        since=None,
        things=(),
        hourly_usd=Decimal(0),
        spent_usd=Decimal(0),
        unpriced=(),
        billed_in=tuple(sorted({row.spending.region for row in rows})),
        may_appear_until=may_appear_until,
    )


@dataclass(frozen=True)
class RegionSearch:
    """The result of searching one region, or IAM (`global`).

    Attributes:
        tagged: Resources with a cluster's tag. The list may be incomplete if `unknown` is set.
        retained: Storage and images. The list may be incomplete if `denied` or `unknown` is set.
        denied: Error message if the caller lacks the permission to list storage and images, or empty.
        unknown: Error message if any other request failed, or empty.
    """

    region: str
    tagged: Sequence[TaggedResource] = ()
    retained: Sequence[RetainedResource] = ()
    denied: str = ""
    unknown: str = ""


@dataclass(frozen=True)
class LocalCluster:
    """A cluster that has a record in this state home.

    Attributes:
        up: Whether the record's state is `up`.
        busy: Whether another command that uses this state home is working on the cluster.
        problem: Error message if `busy` could not be determined, or empty.
    """

    token: str
    up: bool = False
    busy: bool = False
    problem: str = ""


@dataclass(frozen=True)
class SweepFindings:
    """Everything that the decisions of a sweep depend on.

    Attributes:
        regions: The regions to search, as requested or as enabled in the account.
        everywhere: Whether IAM and every enabled region were to be searched.
        searches: One result per region and, if everything was to be searched, one for IAM.
        endpoint: Endpoint of the account; empty for AWS.
        rows: Every ledger row, open or closed, of the account's clusters that have an open row.
        local: Cluster name -> this state home's record, for each cluster in a tag or in a ledger row.
        recorded: Names of all clusters with a record in this state home.
    """

    regions: tuple[str, ...]
    everywhere: bool
    searches: tuple[RegionSearch, ...]
    endpoint: str = ""
    rows: tuple[LedgerEntry, ...] = ()
    local: Mapping[str, LocalCluster] = field(default_factory=dict)
    recorded: frozenset[str] = frozenset()


@dataclass(frozen=True)
class StorageUsers:
    """The clusters that may still use storage, because the sweep does not delete them.

    Attributes:
        clusters: Names of the remaining clusters with tagged resources, whoever owns them.
        here: Names of the remaining clusters with a record in this state home.
        all_asked: Whether every enabled region was searched successfully.
    """

    clusters: Set[str]
    here: Set[str]
    all_asked: bool


def classify(findings: SweepFindings, request: SweepRequest, catalog: Catalog, now: datetime) -> SweepPlan:
    """Return a plan with a decision on every cluster, storage and image that was found and that the request covers."""
    unknown = _unknown_regions(findings)
    searches = [search for search in findings.searches if search.region != GLOBAL or GLOBAL not in unknown]
    searched = tuple(region for region in findings.regions if region not in unknown)
    resources = [resource for search in searches for resource in search.tagged]
    clusters = tuple(
        (cluster, decide_on_cluster(cluster, findings.local.get(cluster.cluster), request, now))
        for cluster in (
            *_billed(group_by_cluster(resources, catalog, now), findings, now),
            *_ledger_only(findings, resources, searched),
        )
        if request.covers(cluster)
    )
    deleted = {cluster.cluster for cluster, decision in clusters if decision.may_delete}
    remaining = {resource.tags[CLUSTER_TAG] for resource in resources if CLUSTER_TAG in resource.tags} - deleted
    users = StorageUsers(remaining, findings.recorded - deleted, findings.everywhere and not unknown)
    retained = [resource for search in searches for resource in search.retained if request.covers(resource)]
    return SweepPlan(
        regions=searched,
        unknown=tuple(unknown.items()),
        clusters=clusters,
        retained=tuple((resource, decide_on_resource(resource, users, request)) for resource in retained),
        unseen=tuple((search.region, search.denied) for search in searches if search.denied),
    )


def _billed(clusters: Iterable[ClusterResources], findings: SweepFindings, now: datetime) -> Iterator[ClusterResources]:
    """Take the cost so far from the ledger, as `status` does, if it has a row for every running instance.

    Otherwise, for example if another state home created the cluster, the cost is estimated from the resources.
    """
    billed = defaultdict[tuple[str, str], list[LedgerEntry]](list)
    for row in findings.rows:
        billed[cluster_of(row)].append(row)
    for cluster in clusters:
        rows = billed.get((cluster.cluster, cluster.token), [])
        known = {instance_id for row in rows for instance_id in row.instance_ids}
        if rows and all(instance.id in known for instance in cluster.instances):
            yield replace(cluster, spent_usd=billed_usd(rows, now))
        else:
            yield cluster


def decide_on_cluster(
    cluster: ClusterResources, local: LocalCluster | None, request: SweepRequest, now: datetime
) -> SweepDecision:
    """Decide whether a cluster may be deleted. The first applicable rule decides.

    Args:
        cluster: The cluster as its tags or its ledger rows describe it.
        local: This state home's record of a cluster with this name, or None.
        request: The caller and the caller's options.
        now: Time of the decision.
    """
    here = local or LocalCluster("")
    known = local is not None and local.token == cluster.token
    appears = cluster.may_appear_until
    others = sorted(cluster.owners - {request.caller})
    by_owner = command(*(word for owner in others for word in ("--owner", owner)))
    rules = (
        (
            appears is not None and appears > now and not known,
            False,
            f"no tagged resources; a launch may still appear until {appears:%Y-%m-%d %H:%M:%S} UTC" if appears else "",
        ),
        (bool(here.problem), False, here.problem),
        (here.busy, False, "another command is working on this cluster"),
        (bool(cluster.owner) and cluster.owners <= request.owners, True, f"{cluster.owner}'s, as requested"),
        (cluster.expired(now), True, "past its expiry"),
        (not cluster.owner, False, "no owner tag; `sweep` deletes it after its expiry"),
        (bool(others), False, f"{' and '.join(others)}'s and not past its expiry; add {by_owner} to delete it"),
        (
            known and here.up and not request.all_mine,
            False,
            "yours and not past its expiry; add --all-mine to delete it too",
        ),
        (known, True, "yours"),
    )
    return next(
        (SweepDecision(may_delete, why) for holds, may_delete, why in rules if holds),
        SweepDecision(may_delete=True, why="yours, with no record in this state home"),
    )


def decide_on_resource(resource: RetainedResource, users: StorageUsers, request: SweepRequest) -> SweepDecision:
    """Decide whether a resource may be deleted. The first applicable rule decides; protected data is never deleted."""
    cluster = resource.made_for
    # Ignore the nodes of the storage's own cluster: they are deleted first, and the users are then checked again.
    others = [user for user in resource.users or () if not (cluster and user.endswith(f"(cluster {cluster})"))]
    rules = (
        (resource.noun == "image", False, f"delete it with `{resource.delete_command}`"),
        (bool(others), False, f"in use by {', '.join(others)}"),
        (not resource.disposable, False, f"contains protected data; delete it with `{resource.delete_command}`"),
        (not cluster, False, f"disposable, but not created for a cluster; delete it with `{resource.delete_command}`"),
        (cluster in users.clusters, False, f"will be deleted with cluster {cluster}, which still exists"),
        (
            cluster in users.here,
            False,
            f"will be deleted with cluster {cluster}: `{command('cloudgpu', 'down', cluster)}`",
        ),
        (
            not users.all_asked,
            False,
            f"belongs to cluster {cluster}, which may be in a region that was not searched",
        ),
        (resource.owner in request.owners, True, f"{resource.owner}'s, as requested, and cluster {cluster} is deleted"),
        (
            resource.owner != request.caller,
            False,
            f"{resource.owner or 'unknown owner'}'s; add {command('--owner', resource.owner)} to delete it",
        ),
    )
    orphaned = SweepDecision(may_delete=True, why=f"disposable, and its cluster {cluster} is deleted")
    return next((SweepDecision(may_delete, why) for holds, may_delete, why in rules if holds), orphaned)


def _unknown_regions(findings: SweepFindings) -> dict[str, str]:
    unknown = {search.region: search.unknown for search in findings.searches if search.unknown}
    if unknown and any(search.region == GLOBAL for search in findings.searches):
        # A cluster in an unsearchable region may still need its IAM roles, such as the role of its expiry schedule.
        unknown.setdefault(GLOBAL, "left unchanged while a region cannot be searched")
    return unknown


def _ledger_only(
    findings: SweepFindings, resources: Sequence[TaggedResource], searched: Sequence[str]
) -> tuple[ClusterResources, ...]:
    """Return the clusters that exist only in the ledger."""
    tokens = {resource.tags.get(TOKEN_TAG, "") for resource in resources}
    return clusters_without_resources(findings.rows, findings.endpoint, SearchCoverage(frozenset(searched), tokens))
