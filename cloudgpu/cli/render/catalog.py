"""What is known, and what a refresh changed, as text and as JSON."""

from collections.abc import Sequence
from datetime import UTC, datetime, time
from typing import Any, Final

from cloudgpu.app.planning.catalog_age import CatalogStatus
from cloudgpu.app.planning.catalog_refresh import RefreshResult, line
from cloudgpu.catalog.overlay_changes import Change
from cloudgpu.cli.terminal.figures import age, moment
from cloudgpu.cli.terminal.table import columns
from cloudgpu.state.catalog_snapshots import Entry, History
from cloudgpu.text import command

_SHOWN: Final = 20
"""Lines of spot prices, which move all day, and of first readings, which are many."""
_NAMED: Final = 4
"""Regions that are named one by one."""
_MANY: Final = ("spot", "spot-new", "spot-gone", "price-new", "zone-new")
_WORDS: Final = {"on_demand": "on-demand"}


def refreshed_lines(done: RefreshResult) -> list[str]:
    """What changed, line by line, and what nobody told."""
    where = _where(done.entry.regions)
    simulated = "  [simulated]" if done.simulated else ""
    lines = [f"{done.target} {where}: {done.entry.summary} (overlay {done.entry.number}){simulated}"]
    lines += [f"  {one}" for one in _shown(done.changes, done.entry.number)]
    lines += [f"left out: {name} has the GPU {gpu}, of which nothing is known" for name, gpu in done.left_out.items()]
    for one in done.unread:
        lines.append(f"unknown: {one.region} {_WORDS.get(one.part, one.part)}: {one.reason}; as it was known before")
    return lines


def _where(regions: Sequence[str]) -> str:
    return f"{len(regions)} regions" if len(regions) > _NAMED else ", ".join(regions)


def _refresh(target: str) -> str:
    return command("cloudgpu", "catalog", "refresh", "--on", target)


def _shown(changes: Sequence[Change], number: int) -> list[str]:
    """Every change; of kinds that come by the hundred the first ones."""
    lines: list[str] = []
    for kind in dict.fromkeys(one.kind for one in changes):
        told = [line(one) for one in changes if one.kind == kind]
        most = _SHOWN if kind in _MANY else len(told)
        lines += told[:most]
        if len(told) > most:
            lines.append(
                f"... and {len(told) - most} more of these: {command('cloudgpu', 'catalog', 'history', str(number))}"
            )
    return lines


def refreshed_json(done: RefreshResult) -> dict[str, Any]:
    """The documented `catalog refresh --json` form."""
    return {
        "target": done.target,
        "simulated": done.simulated,
        "overlay": done.entry.number,
        "read_at": done.entry.at.isoformat(),
        "account": done.entry.account,
        "regions": list(done.entry.regions),
        "summary": done.entry.summary,
        "changes": [vars(one) for one in done.changes],
        "left_out": dict(done.left_out),
        "unread": [vars(one) for one in done.unread],
    }


def knowledge_lines(found: CatalogStatus, now: datetime) -> list[str]:
    """What was read, its age and source, then what came with cloudgpu."""
    first, last = found.shipped_priced_on
    simulated = "  [simulated]" if found.simulated else ""
    lines = []
    if found.entry is None:
        lines.append(f"{found.target}: nothing was read yet; {_refresh(found.target)} reads it")
    else:
        read = f"overlay {found.entry.number}, read {moment(found.entry.at)} by account {found.entry.account}"
        lines += [f"{found.target}: {read}{simulated}", ""]
        rows = [
            (
                one.region,
                _WORDS.get(one.part, one.part),
                str(one.rows),
                moment(one.at),
                f"{age((now - one.at).total_seconds())} ago",
                one.source,
            )
            for one in found.known
        ]
        lines += columns([("region", "what", "rows", "read", "age", "source"), *rows], right={2})
    lines += [f"retired since {one.on}: {name} ({one.source})" for name, one in sorted(found.retired.items())]
    old = age((now - datetime.combine(first, time(), UTC)).total_seconds())
    span = str(first) if first == last else f"{first} to {last}"
    what = "everything" if found.entry is None else "everything else"
    lines += ["", f"{what} came with cloudgpu: {found.shipped_types} types, prices read {span} ({old} ago)"]
    return lines + [f"  {source}" for source in found.sources]


def knowledge_json(found: CatalogStatus, now: datetime) -> dict[str, Any]:
    """The documented `catalog show --json` form."""
    first, last = found.shipped_priced_on
    return {
        "target": found.target,
        "simulated": found.simulated,
        "overlay": found.entry.number if found.entry else 0,
        "account": found.entry.account if found.entry else None,
        "read": [
            {
                "region": one.region,
                "what": one.part,
                "rows": one.rows,
                "read_at": one.at.isoformat(),
                "age_s": int((now - one.at).total_seconds()),
                "source": one.source,
            }
            for one in found.known
        ],
        "retired": {name: {"on": str(one.on), "source": one.source} for name, one in found.retired.items()},
        "shipped": {
            "types": found.shipped_types,
            "priced_from": str(first),
            "priced_to": str(last),
            "sources": list(found.sources),
        },
    }


def history_lines(found: History, target: str) -> list[str]:
    """One line a refresh, the newest last; a star marks the one that holds."""
    if not found.entries:
        return [f"{target}: nothing was read yet; {_refresh(target)} reads it"]
    rows = [_history_row(one, holds=one.number == found.current) for one in found.entries]
    lines = columns([("", "overlay", "read", "over", "regions", "changed"), *rows], right={1, 3})
    return lines if found.current else [*lines, f"{target}: the catalogue that came with cloudgpu holds"]


def _history_row(one: Entry, *, holds: bool) -> tuple[str, ...]:
    where = _where(one.regions)
    return "*" if holds else "", str(one.number), moment(one.at), str(one.after), where, one.summary


def entry_lines(one: Entry) -> list[str]:
    """Everything that one refresh changed."""
    head = f"overlay {one.number}, read {moment(one.at)} from {_where(one.regions)}: {one.summary}"
    return [head, *(f"  {text}" for text in one.lines)]


def history_json(found: History, target: str, one: Entry | None) -> dict[str, Any]:
    """The documented `catalog history --json` form; lines only of the one that was asked for."""
    entries = found.entries if one is None else (one,)
    return {
        "target": target,
        "simulated": target == "rehearsal",
        "overlay": found.current,
        "history": [
            {
                "overlay": entry.number,
                "read_at": entry.at.isoformat(),
                "account": entry.account,
                "over": entry.after,
                "regions": list(entry.regions),
                "summary": entry.summary,
                "changes": list(entry.lines) if one else None,
            }
            for entry in entries
        ],
    }
