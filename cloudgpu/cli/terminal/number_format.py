"""Format money, counts, durations and times for display. `--json` documents contain exact values instead."""

from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal

_CENT = Decimal("0.01")
_SMALL = Decimal("0.0001")
_AGES = ((86400, "d"), (3600, "h"), (60, "min"))


def money(usd: Decimal) -> str:
    """Format an amount as `$62.42`. Amounts between zero and one dollar get four decimals: `$0.0312`."""
    step = _CENT if usd == 0 or abs(usd) >= 1 else _SMALL
    return f"${usd.quantize(step, ROUND_HALF_UP):,}"


def amount(figure: Decimal) -> str:
    """Format a number without trailing zeros: `16`, `22.35`."""
    return f"{figure.normalize():f}"


def duration(seconds: float) -> str:
    """Format a duration as `4.0 s`, `2 min 05 s` or `1 h 02 min`."""
    if round(seconds, 1) < 60:  # noqa: PLR2004
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {left:02d} s"


def age(seconds: float) -> str:
    """Format an age in its largest whole unit, rounded down: `3 min`."""
    for size, unit in _AGES:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def format_time(at: datetime) -> str:
    """Format a time as `2026-11-21 03:35 UTC`."""
    return f"{at:%Y-%m-%d %H:%M} UTC"


def relative_time(at: datetime, now: datetime) -> str:
    """Format a time relative to now: `in 29 min`, `3 h ago`."""
    seconds = (at - now).total_seconds()
    return f"in {age(seconds)}" if seconds >= 0 else f"{age(-seconds)} ago"
