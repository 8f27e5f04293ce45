"""Sentences and sums about money. All of it `Decimal`, USD."""

from decimal import ROUND_CEILING, Decimal

from cloudgpu.plan.costs import CENT
from cloudgpu.plan.plan import Plan
from cloudgpu.recipe.units import DurationS

_SHORTEST_S = 600
"""Below ten minutes nodes end before they have started work."""
_MINUTE_S = 60
_SHOWN = Decimal("0.0001")


def sum_up(plan: Plan) -> str:
    """How the worst case comes about: `62.43 for 2 nodes p3dn.24xlarge, 0.05 for 2 disks of 200 GiB (gp3)`.

    Empty without candidates.
    """
    parts = ((item.label, item.until_usd(plan.expiry_s)) for item in plan.costs)
    return ", ".join(f"{cents(usd)} for {label}" for label, usd in parts if usd is not None)


def without(plan: Plan) -> str:
    """What the sum leaves out, since nobody knows its price: `, without 2 disks of 200 GiB (gp3)`; mostly empty."""
    return f", without {', '.join(plan.unpriced)}: no price is known" if plan.unpriced else ""


def shown(usd: Decimal) -> str:
    """A rate to the hundredth of a cent, never rounded down."""
    return f"{usd.quantize(_SHOWN, rounding=ROUND_CEILING).normalize():f}"


def cents(usd: Decimal) -> str:
    """An amount to the cent, never rounded down."""
    return f"{usd.quantize(CENT, rounding=ROUND_CEILING):f}"


def expiry_that_fits(plan: Plan, cap_usd: Decimal) -> DurationS | None:
    """The longest expiry, in whole minutes, whose worst case stays within the cap; None when too short to be of use."""
    low, high = 0, plan.expiry_s // _MINUTE_S
    # What the worst case comes to never falls when the expiry grows, so halving finds the last one that fits.
    while low < high:
        middle = (low + high + 1) // 2
        worst = plan.worst_case_over_usd(middle * _MINUTE_S)
        low, high = (middle, high) if worst is not None and worst <= cap_usd else (low, middle - 1)
    return DurationS(low * _MINUTE_S) if low * _MINUTE_S >= _SHORTEST_S else None
