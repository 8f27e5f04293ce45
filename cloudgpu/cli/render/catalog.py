"""The catalogue's data and the changes of a refresh, as text and as JSON."""

from collections.abc import Sequence
from datetime import UTC, datetime, time
from typing import Any, Final

from cloudgpu.app.planning.catalog_age import CatalogStatus
from cloudgpu.app.planning.catalog_refresh import RefreshResult, line
from cloudgpu.catalog.snapshot_changes import Change
from cloudgpu.cli.terminal.number_format import age, moment
from cloudgpu.cli.terminal.table import columns
from cloudgpu.state.catalog_snapshots import History, SnapshotEntry
from cloudgpu.text import command

_SHOWN: Final = 20
"""Lines of spot prices, which move all day, and of first readings, which are many."""
_NAMED: Final = 4
"""Regions that are named one by one."""
_MANY: Final = ("spot", "spot-new", "spot-gone", "price-new", "zone-new")
_WORDS: Final = {"on_demand": "on-demand"}


def refreshed_lines(result: RefreshResult) -> list[str]:
    """Return the changes line by line, and what could not be read."""
    where = _where(result.entry.regions)
    simulated = "  [simulated]" if result.simulated else ""
    lines = [f"{result.target} {where}: {result.entry.summary} (overlay {result.entry.number}){simulated}"]
    lines += [f"  {change}" for change in _shown(result.changes, result.entry.number)]
    lines += [f"left out: {name} has the unknown GPU {gpu}" for name, gpu in result.left_out.items()]
    for unread in result.unread:
        part = _WORDS.get(unread.part, unread.part)
        lines.append(f"unknown: {unread.region} {part}: {unread.reason}; keeping the previous data")
    return lines


def _where(regions: Sequence[str]) -> str:
    return f"{len(regions)} regions" if len(regions) > _NAMED else ", ".join(regions)


def _refresh(target: str) -> str:
    return command("cloudgpu", "catalog", "refresh", "--on", target)


def _shown(changes: Sequence[Change], number: int) -> list[str]:
    """Return the changes, limited to the first ones of kinds with hundreds of changes."""
    lines: list[str] = []
    for kind in dict.fromkeys(change.kind for change in changes):
        changed = [line(change) for change in changes if change.kind == kind]
        most = _SHOWN if kind in _MANY else len(changed)
        lines += changed[:most]
        if len(changed) > most:
            lines.append(
                f"... and {len(changed) - most} more of these: {command('cloudgpu', 'catalog', 'history', str(number))}"
            )
    return lines


def refreshed_json(result: RefreshResult) -> dict[str, Any]:
    """Return the documented `catalog refresh --json` form."""
    return {
        "target": result.target,
        "simulated": result.simulated,
        "overlay": result.entry.number,
        "read_at": result.entry.at.isoformat(),
        "account": result.entry.account,
        "regions": list(result.entry.regions),
        "summary": result.entry.summary,
        "changes": [vars(row) for row in result.changes],
        "left_out": dict(result.left_out),
        "unread": [vars(row) for row in result.unread],
    }


def knowledge_lines(status: CatalogStatus, now: datetime) -> list[str]:
    """Return what was read, with age and source, and then what is bundled."""
    first, last = status.shipped_priced_on
    simulated = "  [simulated]" if status.simulated else ""
    lines = []
    if status.entry is None:
        lines.append(f"{status.target}: no data has been read yet; {_refresh(status.target)} reads it")
    else:
        read = f"overlay {status.entry.number}, read {moment(status.entry.at)} by account {status.entry.account}"
        lines += [f"{status.target}: {read}{simulated}", ""]
        rows = [
            (
                part.region,
                _WORDS.get(part.part, part.part),
                str(part.rows),
                moment(part.at),
                f"{age((now - part.at).total_seconds())} ago",
                part.source,
            )
            for part in status.known
        ]
        lines += columns([("region", "what", "rows", "read", "age", "source"), *rows], right={2})
    lines += [f"retired since {part.on}: {name} ({part.source})" for name, part in sorted(status.retired.items())]
    old = age((now - datetime.combine(first, time(), UTC)).total_seconds())
    span = str(first) if first == last else f"{first} to {last}"
    what = "everything" if status.entry is None else "everything else"
    lines += ["", f"{what} came with cloudgpu: {status.shipped_types} types, prices read {span} ({old} ago)"]
    return lines + [f"  {source}" for source in status.sources]


def knowledge_json(status: CatalogStatus, now: datetime) -> dict[str, Any]:
    """Return the documented `catalog show --json` form."""
    first, last = status.shipped_priced_on
    return {
        "target": status.target,
        "simulated": status.simulated,
        "overlay": status.entry.number if status.entry else 0,
        "account": status.entry.account if status.entry else None,
        "read": [
            {
                "region": part.region,
                "what": part.part,
                "rows": part.rows,
                "read_at": part.at.isoformat(),
                "age_s": int((now - part.at).total_seconds()),
                "source": part.source,
            }
            for part in status.known
        ],
        "retired": {name: {"on": str(part.on), "source": part.source} for name, part in status.retired.items()},
        "shipped": {
            "types": status.shipped_types,
            "priced_from": str(first),
            "priced_to": str(last),
            "sources": list(status.sources),
        },
    }


def history_lines(history: History, target: str) -> list[str]:
    """Return one line per refresh, latest last, with a star at the active one."""
    if not history.entries:
        return [f"{target}: no data has been read yet; {_refresh(target)} reads it"]
    rows = [_history_row(entry, holds=entry.number == history.current) for entry in history.entries]
    lines = columns([("", "overlay", "read", "over", "regions", "changed"), *rows], right={1, 3})
    return lines if history.current else [*lines, f"{target}: the catalogue shipped with cloudgpu is in use"]


def _history_row(entry: SnapshotEntry, *, holds: bool) -> tuple[str, ...]:
    where = _where(entry.regions)
    return "*" if holds else "", str(entry.number), moment(entry.at), str(entry.after), where, entry.summary


def entry_lines(entry: SnapshotEntry) -> list[str]:
    """Return all changes of one refresh."""
    head = f"overlay {entry.number}, read {moment(entry.at)} from {_where(entry.regions)}: {entry.summary}"
    return [head, *(f"  {text}" for text in entry.lines)]


def history_json(history: History, target: str, selected: SnapshotEntry | None) -> dict[str, Any]:
    """Return the documented `catalog history --json` form, with changes only for the selected refresh."""
    entries = history.entries if selected is None else (selected,)
    return {
        "target": target,
        "simulated": target == "rehearsal",
        "overlay": history.current,
        "history": [
            {
                "overlay": entry.number,
                "read_at": entry.at.isoformat(),
                "account": entry.account,
                "over": entry.after,
                "regions": list(entry.regions),
                "summary": entry.summary,
                "changes": list(entry.lines) if selected else None,
            }
            for entry in entries
        ],
    }
