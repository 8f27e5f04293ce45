"""What a recorded cluster costs: its nodes, and the disks, addresses and gateway that go with them."""

from decimal import Decimal

from cloudgpu.app.records import ClusterRecord
from cloudgpu.plan import costs
from cloudgpu.plan.costs import CostItem


def items_of(record: ClusterRecord) -> tuple[CostItem, ...]:
    """Its nodes first. A record of an older cloudgpu has nodes alone."""
    usd = Decimal(record.node_hourly_usd) * record.nodes
    nodes = CostItem("nodes", record.nodes, f"nodes {record.instance_type}", usd, None, "")
    return (nodes, *(CostItem.from_json(one) for one in record.beside))


def cluster_hourly_usd(record: ClusterRecord) -> Decimal:
    """What it costs an hour, USD, exactly; what has no known price is not in it."""
    return costs.hourly_usd(items_of(record))


def worst_case_usd(record: ClusterRecord) -> Decimal:
    """What it costs if it lives until its expiry, USD, rounded up to the cent."""
    return costs.total_usd(items_of(record), int((record.expires_at - record.created_at).total_seconds()))


def spent_usd(record: ClusterRecord, seconds: float) -> Decimal:
    """What it has cost after so long, USD, to the cent."""
    hourly = cluster_hourly_usd(record)
    return (hourly * Decimal(str(max(0.0, seconds))) / costs.HOUR_S).quantize(costs.CENT)
