"""Format costs, and find the expiry that fits a budget. All amounts are `Decimal` in USD."""

from decimal import ROUND_CEILING, Decimal

from cloudgpu.plan.costs import CENT
from cloudgpu.plan.plan import Plan
from cloudgpu.recipe.units import DurationS

_SHORTEST_S = 600
"""Shortest useful expiry: with a shorter one, nodes would terminate before they start work."""
_MINUTE_S = 60
_SHOWN = Decimal("0.0001")


def breakdown(plan: Plan) -> str:
    """Format the worst-case cost items, such as `62.43 for 2 nodes p3dn.24xlarge, 0.05 for 2 disks of 200 GiB (gp3)`.

    Items without a known price and items billed per month are omitted. The result is empty without candidates.
    """
    parts = ((item.label, item.until_usd(plan.expiry_s)) for item in plan.costs)
    return ", ".join(f"{format_cents(usd)} for {label}" for label, usd in parts if usd is not None)


def unpriced_suffix(plan: Plan) -> str:
    """List the items without a known price, as a suffix to an amount; empty if every price is known."""
    return f", excluding {', '.join(plan.unpriced)} at an unknown price" if plan.unpriced else ""


def format_hourly_rate(usd: Decimal) -> str:
    """Format an hourly rate to the hundredth of a cent, rounded up."""
    return f"{usd.quantize(_SHOWN, rounding=ROUND_CEILING).normalize():f}"


def format_cents(usd: Decimal) -> str:
    """Format an amount to the cent, rounded up."""
    return f"{usd.quantize(CENT, rounding=ROUND_CEILING):f}"


def longest_expiry_within(plan: Plan, cap_usd: Decimal) -> DurationS | None:
    """Return the longest expiry, in whole minutes, that fits both the budget and the plan's expiry.

    Return None if that expiry is too short to be useful.
    """
    low, high = 0, plan.expiry_s // _MINUTE_S
    # The worst case never decreases as the expiry grows, so a binary search finds the longest expiry that fits.
    while low < high:
        middle = (low + high + 1) // 2
        worst = plan.worst_case_over_usd(middle * _MINUTE_S)
        low, high = (middle, high) if worst is not None and worst <= cap_usd else (low, middle - 1)
    return DurationS(low * _MINUTE_S) if low * _MINUTE_S >= _SHORTEST_S else None
