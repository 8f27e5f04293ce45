"""Find clusters with open ledger rows but no tagged resources.

Such rows remain if a command was killed before its first launch, or if a state home was lost and the nodes of its
clusters then terminated at their expiry.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from itertools import groupby

from cloudgpu.backends.sweep.cluster_resources import ClusterResources
from cloudgpu.engine.direct.unanswered_delays import RETRY_PERIOD, delays_at, launch_visible_by
from cloudgpu.ledger.entry import LedgerEntry


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
