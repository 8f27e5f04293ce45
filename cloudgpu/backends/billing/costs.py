"""Compute the cost of a recorded cluster, including its nodes, disks, addresses and NAT gateway."""

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal

from cloudgpu.ledger.billing import entry_usd
from cloudgpu.ledger.entry import OUTLASTING_PARTS, LedgerEntry, Spending, Surcharge
from cloudgpu.plan import costs
from cloudgpu.plan.costs import CostItem
from cloudgpu.state.cluster_record import ClusterRecord


def cost_items(record: ClusterRecord) -> tuple[CostItem, ...]:
    """Return the cluster's cost items, nodes first. Records of older versions list no items other than the nodes."""
    usd = Decimal(record.placement.node_hourly_usd) * record.placement.nodes
    nodes = CostItem("nodes", record.placement.nodes, f"nodes {record.placement.instance_type}", usd, None, "")
    return (nodes, *(CostItem.from_json(item) for item in record.placement.beside))


def cluster_hourly_usd(record: ClusterRecord) -> Decimal:
    """Return the exact cost per hour in USD, excluding items whose price is unknown."""
    return costs.hourly_usd(cost_items(record))


def running_hourly_usd(record: ClusterRecord, running: int) -> Decimal:
    """Return the exact cost per hour in USD if only `running` of the cluster's nodes still run.

    A NAT gateway and Elastic IPs cost the same however many nodes run. Everything else ends with its node.
    """
    share = Decimal(running) / max(1, record.placement.nodes)
    known = [item for item in cost_items(record) if item.per == "hour" and item.usd is not None]
    return sum(
        ((item.usd or Decimal(0)) * (1 if _surcharge_kind(item) in OUTLASTING_PARTS else share) for item in known),
        Decimal(0),
    )


def worst_case_usd(record: ClusterRecord) -> Decimal:
    """Return the cost in USD if the cluster runs until its expiry, rounded up to the cent."""
    return costs.total_usd(
        cost_items(record), int((record.lifecycle.expires_at - record.identity.created_at).total_seconds())
    )


def spent_usd(record: ClusterRecord, seconds: float) -> Decimal:
    """Return the cost in USD after this many seconds, rounded to the cent."""
    hourly = cluster_hourly_usd(record)
    return (hourly * Decimal(str(max(0.0, seconds))) / costs.HOUR_S).quantize(costs.CENT)


def billed_usd(rows: Iterable[LedgerEntry], now: datetime) -> Decimal:
    """Return the cost so far of a cluster with these ledger rows, rounded to the cent, for `status` and `sweep`."""
    return sum((entry_usd(row, now) for row in rows), Decimal(0)).quantize(costs.CENT)


def spending_of(record: ClusterRecord, at: datetime) -> Spending:
    """Return the ledger row for the candidate in a cluster's record.

    The row ID depends only on the cluster and the candidate, so a lost row can be written again.
    """
    return Spending(
        entry_id=f"{record.identity.token}/{record.placement.zone}/{record.placement.instance_type}/{record.placement.market}",
        cluster=record.name,
        run_id=record.identity.run_id,
        recipe=record.identity.recipe,
        owner=record.identity.owner,
        team=record.identity.team,
        target=record.identity.target,
        simulated=record.simulated,
        account=record.identity.account,
        endpoint=record.identity.endpoint,
        region=record.placement.region,
        zone=record.placement.zone,
        instance_type=record.placement.instance_type,
        market=record.placement.market,
        nodes=record.placement.nodes,
        node_hourly_usd=Decimal(record.placement.node_hourly_usd),
        opened_at=at,
        expires_at=record.lifecycle.expires_at,
        beside=surcharges(cost_items(record)[1:]),
    )


def surcharges(beside: Iterable[CostItem]) -> tuple[Surcharge, ...]:
    """Return the hourly costs, other than the nodes', that belong to a cluster's ledger row. Storage has its own rows.

    Elastic IPs have their own kind, because AWS bills them until they are released, even after the nodes are
    terminated.
    """
    hourly = [item for item in beside if item.per == "hour" and item.kind != "storage"]
    return tuple(Surcharge(_surcharge_kind(item), item.count, item.usd, item.whole_hours) for item in hourly)


def _surcharge_kind(item: CostItem) -> str:
    return "elastic-ips" if item.kind == "addresses" and item.what.startswith("Elastic IP") else item.kind


def entry_from_record(record: ClusterRecord) -> LedgerEntry:
    """Reconstruct an open ledger row from the cluster's record, for use when the ledger cannot be read."""
    spending = spending_of(record, record.identity.created_at)
    return LedgerEntry(spending, "open", record.placement.instance_ids, record.identity.created_at, closed_at=None)
