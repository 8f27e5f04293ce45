"""Compute the cost of a recorded cluster, including its nodes, disks, addresses and NAT gateway."""

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal

from cloudgpu.ledger.entry import LedgerEntry, Spending, Surcharge
from cloudgpu.plan import costs
from cloudgpu.plan.costs import CostItem
from cloudgpu.state.cluster_and_run_records import ClusterRecord


def cost_items(record: ClusterRecord) -> tuple[CostItem, ...]:
    """Return the cluster's cost items, nodes first. Records written by older versions contain only the nodes."""
    usd = Decimal(record.node_hourly_usd) * record.nodes
    nodes = CostItem("nodes", record.nodes, f"nodes {record.instance_type}", usd, None, "")
    return (nodes, *(CostItem.from_json(item) for item in record.beside))


def cluster_hourly_usd(record: ClusterRecord) -> Decimal:
    """Return the exact cost per hour in USD, excluding items whose price is unknown."""
    return costs.hourly_usd(cost_items(record))


def worst_case_usd(record: ClusterRecord) -> Decimal:
    """Return the cost in USD if the cluster runs until its expiry, rounded up to the cent."""
    return costs.total_usd(cost_items(record), int((record.expires_at - record.created_at).total_seconds()))


def spent_usd(record: ClusterRecord, seconds: float) -> Decimal:
    """Return the cost in USD after this many seconds, rounded to the cent."""
    hourly = cluster_hourly_usd(record)
    return (hourly * Decimal(str(max(0.0, seconds))) / costs.HOUR_S).quantize(costs.CENT)


def spending_of(record: ClusterRecord, at: datetime) -> Spending:
    """Return the ledger row for the candidate in a cluster's record.

    The row ID depends only on the cluster and the candidate, so a lost row can be written again.
    """
    return Spending(
        entry_id=f"{record.token}/{record.zone}/{record.instance_type}/{record.market}",
        cluster=record.name,
        run_id=record.run_id,
        recipe=record.recipe,
        owner=record.owner,
        team=record.team,
        target=record.target,
        simulated=record.simulated,
        account=record.account,
        endpoint=record.endpoint,
        region=record.region,
        zone=record.zone,
        instance_type=record.instance_type,
        market=record.market,
        nodes=record.nodes,
        node_hourly_usd=Decimal(record.node_hourly_usd),
        opened_at=at,
        expires_at=record.expires_at,
        beside=surcharges(cost_items(record)[1:]),
    )


def surcharges(beside: Iterable[CostItem]) -> tuple[Surcharge, ...]:
    """Return the hourly costs that the ledger adds to those of the nodes; storage has separate rows.

    Elastic IPs are separate from other addresses because AWS bills them until they are released, even without
    nodes.
    """
    hourly = [item for item in beside if item.per == "hour" and item.kind != "storage"]
    return tuple(Surcharge(_surcharge_kind(item), item.count, item.usd, item.whole_hours) for item in hourly)


def _surcharge_kind(item: CostItem) -> str:
    return "elastic-ips" if item.kind == "addresses" and item.what.startswith("Elastic IP") else item.kind


def entry_from_record(record: ClusterRecord) -> LedgerEntry:
    """Reconstruct the ledger row from the record alone, for use when the ledger cannot be read."""
    spending = spending_of(record, record.created_at)
    return LedgerEntry(spending, "open", record.instance_ids, record.created_at, closed_at=None)
