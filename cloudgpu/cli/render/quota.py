"""Quotas as text and as JSON."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from cloudgpu.app.planning.quota_headroom import RegionQuotas
from cloudgpu.app.planning.quota_report import Line
from cloudgpu.cli.terminal.figures import age, plural
from cloudgpu.cli.terminal.table import columns

_HEADINGS = ("region", "market", "type", "limit", "in use", "free", "a node", "nodes", "quota", "asked")
_RIGHT = frozenset({3, 4, 5, 6, 7})
_UNKNOWN = "unknown"


def quota_lines(lines: Sequence[Line], found: Sequence[RegionQuotas], target: str, now: datetime) -> list[str]:
    """A table in vCPUs, why what is unknown is so, and what to do where it is not enough."""
    simulated = "  [simulated]" if target == "rehearsal" else ""
    told = [f"vCPUs of running instances on {target}{simulated}", ""]
    told += columns([_HEADINGS, *(_row(one, now) for one in lines)], right=_RIGHT)
    reasons = [f"unknown: {one.region}: {reason}" for one in found for reason in one.trouble]
    remedies = [text for one in lines if one.enough is not True for text in _more(one)]
    return [*told, *([""] if reasons or remedies else []), *reasons, *remedies]


def _row(one: Line, now: datetime) -> tuple[str, ...]:
    room = one.room
    return (
        one.region,
        one.market,
        one.kind.name if one.kind else "-",
        str(room.limit_vcpus) if room else _UNKNOWN,
        _count(room.used_vcpus if room else None),
        _count(room.free_vcpus if room else None),
        str(one.kind.vcpus) if one.kind else "-",
        _count(one.nodes_free) if one.kind else "-",
        str(one.quota),
        f"{age((now - room.read_at).total_seconds())} ago" if room and room.read_at else "-",
    )


def _count(figure: int | None) -> str:
    return _UNKNOWN if figure is None else str(figure)


def _more(one: Line) -> Iterator[str]:
    """How to ask for more, where a type was asked about and it is too little, or nobody knows."""
    if one.kind is None:
        return
    what = f"{plural(one.nodes, 'node')} of {one.kind.name} {one.market} in {one.region}"
    verdict = "too little" if one.enough is False else "unknown whether it is enough"
    yield f"{verdict} for {what}: {one.needed_vcpus} vCPUs are needed; ask for more:"
    if one.request:
        yield f"    {one.request}"
    yield f"    {one.quota.console(one.region)}"


def quota_json(lines: Sequence[Line], found: Sequence[RegionQuotas], target: str, now: datetime) -> dict[str, Any]:
    """The documented `quota --json` form; null is unknown."""
    return {
        "target": target,
        "simulated": target == "rehearsal",
        "quotas": [_line_json(one, now) for one in lines],
        "unread": [{"region": one.region, "reason": reason} for one in found for reason in one.trouble],
    }


def _line_json(one: Line, now: datetime) -> dict[str, Any]:
    room = one.room
    read_at = room.read_at if room else None
    return {
        "region": one.region,
        "market": one.market,
        "quota_code": one.quota.code or None,
        "quota_name": one.quota.name,
        "limit_vcpus": room.limit_vcpus if room else None,
        "used_vcpus": room.used_vcpus if room else None,
        "free_vcpus": room.free_vcpus if room else None,
        "instance_type": one.kind.name if one.kind else None,
        "node_vcpus": one.kind.vcpus if one.kind else None,
        "nodes_free": one.nodes_free,
        "nodes_wanted": one.nodes if one.kind else None,
        "needed_vcpus": one.needed_vcpus,
        "enough": one.enough,
        "request_command": one.request or None,
        "console_url": one.quota.console(one.region),
        "read_at": read_at.isoformat() if read_at else None,
        "age_s": int((now - read_at).total_seconds()) if read_at else None,
    }
