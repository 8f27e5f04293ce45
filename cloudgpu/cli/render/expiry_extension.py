"""An extended cluster expiry as text and as JSON."""

from datetime import datetime
from typing import Any

from cloudgpu.backends.lifecycle.results import ExtensionResult
from cloudgpu.cli.terminal.number_format import format_time, money, relative_time
from cloudgpu.clock import utc_text
from cloudgpu.text import command


def extension_json(extended: ExtensionResult) -> dict[str, Any]:
    """Return the documented output of `extend --json`."""
    record = extended.record
    return {
        "cluster": record.name,
        "simulated": record.simulated,
        "expired_before_at": utc_text(extended.before),
        "expires_at": utc_text(record.lifecycle.expires_at),
        "nodes": record.placement.nodes,
        "worst_case_usd": str(extended.worst_case_usd),
    }


def extension_lines(extended: ExtensionResult, now: datetime) -> list[str]:
    """Return the lines with the new expiry and the worst-case cost until then."""
    record = extended.record
    until = f"{format_time(record.lifecycle.expires_at)} ({relative_time(record.lifecycle.expires_at, now)})"
    before = format_time(extended.before)
    worst = f"{money(extended.worst_case_usd)} at most{' (simulated; nothing is charged)' if record.simulated else ''}"
    return [
        f"cluster {record.name} now expires at {until}, previously {before}; confirmed by every node",
        f"  cost until then: {worst}; to delete it earlier: {command('cloudgpu', 'down', record.name)}",
    ]
