"""Sentences and sums about money. All of it `Decimal`, USD."""

from decimal import Decimal

from cloudgpu.plan.plan import Plan
from cloudgpu.recipe.units import DurationS

_SHORTEST_S = 600
"""Below ten minutes nodes end before they have started work."""


def sum_up(plan: Plan) -> str:
    """How the worst case comes about: `2 nodes x 31.212 USD/h x 1h`; empty without candidates."""
    if not plan.candidates:
        return ""
    dearest = max(candidate.node_hourly_usd for candidate in plan.candidates)
    nodes = "1 node" if plan.nodes == 1 else f"{plan.nodes} nodes"
    return f"{nodes} x {dearest.normalize():f} USD/h x {DurationS(plan.expiry_s)}"


def expiry_that_fits(hourly_usd: Decimal, cap_usd: Decimal) -> DurationS | None:
    """The longest expiry, in whole minutes, whose worst case stays within the cap; None when too short to be of use."""
    seconds = int(cap_usd / hourly_usd * 60) * 60 if hourly_usd else 0
    return DurationS(seconds) if seconds >= _SHORTEST_S else None
