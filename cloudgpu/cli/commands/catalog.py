"""`cloudgpu catalog`: show and refresh the catalog of instance types and prices."""

from collections.abc import Sequence
from datetime import UTC, datetime, time
from typing import Annotated, Any, Final

import typer

from cloudgpu.app.planning.catalog_refresh import (
    CatalogRefresh,
    CatalogStatus,
    RefreshResult,
    change_line,
    read_catalog_status,
)
from cloudgpu.catalog import load
from cloudgpu.catalog.snapshot_changes import Change
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options import Json, On, Verbose, integer_parser
from cloudgpu.cli.terminal.number_format import age, format_time
from cloudgpu.cli.terminal.table import Column, Table
from cloudgpu.cli.terminal.wrapping import wrap_lines
from cloudgpu.clock import utc_text
from cloudgpu.errors import CloudError, UsageError
from cloudgpu.state.catalog_snapshots import History, SnapshotEntry
from cloudgpu.targets import is_simulated
from cloudgpu.text import command

_SHOWN: Final = 20
"""Maximum number of lines for each kind of change in `_MANY`."""
_NAMED: Final = 4
"""Maximum number of regions that are listed by name."""
_MANY: Final = ("spot", "spot-new", "spot-gone", "price-new", "zone-new")
"""Kinds of change that occur in large numbers: spot prices, which change all day, and newly added data."""
_WORDS: Final = {"on_demand": "on-demand"}
_READ: Final = (
    Column("region"),
    Column("what"),
    Column("rows", right=True, priority=1),
    Column("read", priority=3, narrow="hide"),
    Column("age", priority=1),
    Column("source", priority=1, narrow="wrap"),
)
_HISTORY: Final = (
    Column(),
    Column("snapshot", right=True),
    Column("read"),
    Column("base", right=True, priority=2, narrow="hide"),
    Column("regions", priority=1, narrow="wrap"),
    Column("changed", narrow="wrap"),
)
app = typer.Typer(help="Show and refresh instance types and prices.", no_args_is_help=True, rich_markup_mode=None)
Regions = Annotated[
    list[str] | None, typer.Option("--region", help="Region to refresh. Default: the `region` setting. Repeatable.")
]
AllRegions = Annotated[bool, typer.Option("--all-regions", help="Refresh every region enabled for the account.")]
Number = Annotated[
    int | None,
    typer.Argument(
        metavar="[NUMBER]",
        parser=integer_parser(),
        help="Snapshot number from `catalog history`. For `revert`, 0 is the bundled catalog.",
    ),
]


def refresh_lines(result: RefreshResult, width: int | None = None) -> list[str]:
    """Return a summary, the changes, the skipped instance types, and the parts of the data that could not be read."""
    where = _where(result.entry.regions)
    simulated = "  [simulated]" if result.simulated else ""
    lines = [f"{result.target} {where}: {result.entry.summary} (snapshot {result.entry.number}){simulated}"]
    lines += [f"  {change}" for change in _shown(result.changes, result.entry.number)]
    lines += [f"skipped: {name} has the unknown GPU {gpu}" for name, gpu in result.left_out.items()]
    for unread in result.unread:
        part = _WORDS.get(unread.part, unread.part)
        lines.append(f"unknown: {unread.region} {part}: {unread.reason}; keeping the previous data")
    return wrap_lines(lines, width)


def _where(regions: Sequence[str]) -> str:
    return f"{len(regions)} regions" if len(regions) > _NAMED else ", ".join(regions)


def _refresh(target: str) -> str:
    return command("cloudgpu", "catalog", "refresh", "--on", target)


def _shown(changes: Sequence[Change], number: int) -> list[str]:
    """Return one line per change, limited to the first `_SHOWN` changes of each kind in `_MANY`."""
    lines: list[str] = []
    for kind in dict.fromkeys(change.kind for change in changes):
        changed = [change_line(change) for change in changes if change.kind == kind]
        most = _SHOWN if kind in _MANY else len(changed)
        lines += changed[:most]
        if len(changed) > most:
            list_all = command("cloudgpu", "catalog", "history", str(number))
            lines.append(f"... and {len(changed) - most} more; to list them: {list_all}")
    return lines


def refresh_json(result: RefreshResult) -> dict[str, Any]:
    """Return the documented output of `catalog refresh --json`."""
    return {
        "target": result.target,
        "simulated": result.simulated,
        "overlay": result.entry.number,
        "read_at": utc_text(result.entry.at),
        "account": result.entry.account,
        "regions": list(result.entry.regions),
        "summary": result.entry.summary,
        "changes": [vars(row) for row in result.changes],
        "left_out": dict(result.left_out),
        "unread": [vars(row) for row in result.unread],
    }


def catalog_status_lines(status: CatalogStatus, now: datetime, width: int | None = None) -> list[str]:
    """Return a table of the data read from the target, the retired types, and a summary of the bundled data."""
    first, last = status.shipped_priced_on
    simulated = "  [simulated]" if status.simulated else ""
    lines = []
    if status.entry is None:
        lines += wrap_lines(
            [f"{status.target}: no data has been read yet; to read it: {_refresh(status.target)}"], width
        )
    else:
        read = f"snapshot {status.entry.number}, read {format_time(status.entry.at)} by account {status.entry.account}"
        lines += [*wrap_lines([f"{status.target}: {read}{simulated}"], width), ""]
        rows = [
            (
                part.region,
                _WORDS.get(part.part, part.part),
                str(part.rows),
                format_time(part.at),
                f"{age((now - part.at).total_seconds())} ago",
                part.source,
            )
            for part in status.known
        ]
        lines += Table(_READ, rows).lines(width)
    more = [f"retired since {part.on}: {name} ({part.source})" for name, part in sorted(status.retired.items())]
    old = age((now - datetime.combine(first, time(), UTC)).total_seconds())
    span = str(first) if first == last else f"{first} to {last}"
    what = "everything" if status.entry is None else "everything else"
    more += ["", f"{what} is bundled with cloudgpu: {status.shipped_types} types, prices read {span} ({old} ago)"]
    return [*lines, *wrap_lines([*more, *(f"  {source}" for source in status.sources)], width)]


def catalog_status_json(status: CatalogStatus, now: datetime) -> dict[str, Any]:
    """Return the documented output of `catalog show --json`."""
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
                "read_at": utc_text(part.at),
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


def history_lines(history: History, target: str, width: int | None = None) -> list[str]:
    """Return one line per refresh, latest last; an asterisk marks the active refresh."""
    if not history.entries:
        return [f"{target}: no data has been read yet; to read it: {_refresh(target)}"]
    rows = [_history_row(entry, in_use=entry.number == history.current) for entry in history.entries]
    lines = Table(_HISTORY, rows).lines(width)
    return lines if history.current else [*lines, f"{target}: the catalog bundled with cloudgpu is in use"]


def _history_row(entry: SnapshotEntry, *, in_use: bool) -> tuple[str, ...]:
    where = _where(entry.regions)
    return "*" if in_use else "", str(entry.number), format_time(entry.at), str(entry.after), where, entry.summary


def entry_lines(entry: SnapshotEntry, width: int | None = None) -> list[str]:
    """Return the summary and all changes of one refresh."""
    head = f"snapshot {entry.number}, read {format_time(entry.at)} from {_where(entry.regions)}: {entry.summary}"
    return wrap_lines([head, *(f"  {text}" for text in entry.lines)], width)


def history_json(history: History, target: str, selected: SnapshotEntry | None) -> dict[str, Any]:
    """Return the documented output of `catalog history --json`; only a selected refresh includes its changes."""
    entries = history.entries if selected is None else (selected,)
    return {
        "target": target,
        "simulated": is_simulated(target),
        "overlay": history.current,
        "history": [
            {
                "overlay": entry.number,
                "read_at": utc_text(entry.at),
                "account": entry.account,
                "over": entry.after,
                "regions": list(entry.regions),
                "summary": entry.summary,
                "changes": list(entry.lines) if selected else None,
            }
            for entry in entries
        ],
    }


@app.command("refresh")
def refresh(
    regions: Regions = None,
    all_regions: AllRegions = False,
    on: On = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Refresh types, zones, prices, images and quotas.

    Reads the data from the target's cloud and stores it in CLOUDGPU_HOME. Later plans for the same target use the new
    data. Prints the changes; to undo them, use `catalog revert`. If a region or source cannot be read, keeps its
    previous data and exits 8.
    """
    context = command_context(json=json, verbose=verbose, target=on)
    selected = [] if all_regions else regions or [context.settings.region]
    backend = context.backend()
    refreshing = CatalogRefresh(
        backend, backend.catalog_source(), context.catalog_snapshots, load(), context.clock, context.screen.emit
    )
    with context.screen.working("refresh"):
        result = refreshing.refresh(selected, everywhere=all_regions)
    if json:
        context.screen.document(refresh_json(result))
    else:
        context.screen.lines(refresh_lines(result, context.screen.width))
    if result.unread:
        raise typer.Exit(CloudError.exit_code)


@app.command("show")
def show(
    region: Annotated[str, typer.Option("--region", help="Show only this region's data.")] = "",
    on: On = None,
    json: Json = False,
) -> None:
    """Show the source and age of the catalog's data.

    Makes no cloud calls.
    """
    context = command_context(json=json, quits=True, target=on)
    catalog_status = read_catalog_status(context.catalog_snapshots, context.settings.target, load(), region)
    now = context.clock.now()
    if json:
        context.screen.document(catalog_status_json(catalog_status, now))
    else:
        context.screen.lines(catalog_status_lines(catalog_status, now, context.screen.width))


@app.command("history")
def history(number: Number = None, on: On = None, json: Json = False) -> None:
    """List the refreshes that you can revert to.

    With a number, shows all changes made by that refresh. Makes no cloud calls.
    """
    context = command_context(json=json, quits=True, target=on)
    refreshes = context.catalog_snapshots.history()
    entry = None if number is None else refreshes.entry(number)
    if number is not None and entry is None:
        message = f"there is no snapshot {number} for {context.settings.target}"
        raise UsageError(message, hint=command("cloudgpu", "catalog", "history", "--on", context.settings.target))
    if json:
        context.screen.document(history_json(refreshes, context.settings.target, entry))
    else:
        target, width = context.settings.target, context.screen.width
        context.screen.lines(entry_lines(entry, width) if entry else history_lines(refreshes, target, width))


@app.command("revert")
def revert(number: Number = None, on: On = None, json: Json = False) -> None:
    """Restore the catalog as of an earlier refresh.

    Without a number, undoes the active refresh. With 0, restores the catalog bundled with cloudgpu, even if the stored
    data is damaged. To return to a later refresh, specify its snapshot number.
    """
    context = command_context(json=json, target=on)
    target = context.settings.target
    before, after = context.catalog_snapshots.revert(number)
    if json:
        simulated = is_simulated(target)
        context.screen.document({"target": target, "simulated": simulated, "was": before, "overlay": after})
    else:
        previous, current = (
            f"snapshot {shown}" if shown else "the catalog bundled with cloudgpu" for shown in (before, after)
        )
        context.screen.wrapped([f"{target}: {current} is in use again (previously: {previous})"])
