"""Queries that combine an entry's events into one row, and conversions between rows and objects."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from cloudgpu.ledger.attribution import RunInterval
from cloudgpu.ledger.billing import Charge, nano_usd
from cloudgpu.ledger.entry import EntryState, LedgerEntry, Part, PartEnd, Spending, Surcharge
from cloudgpu.ledger.schema import beside as beside_table
from cloudgpu.ledger.schema import closed, extended, launched, part_ended, run_ended, run_started
from cloudgpu.ledger.schema import opened as opened_table
from cloudgpu.ledger.times import from_text, to_text

_O = opened_table.c
_ENDED = closed.c.closed_at

EntryAttempt = tuple[str, int]
"""Entry ID and attempt. A closed entry may be opened again for another attempt to launch it."""


def _same_attempt(table: sa.Table) -> sa.ColumnElement[bool]:
    return sa.and_(table.c.entry_id == _O.entry_id, table.c.attempt == _O.attempt)


_LAUNCHES = (
    sa.select(
        launched.c.entry_id,
        launched.c.attempt,
        sa.func.count().label("nodes"),
        sa.func.min(launched.c.launched_at).label("launched_at"),
    )
    .group_by(launched.c.entry_id, launched.c.attempt)
    .subquery()
)

_B = beside_table.c
_BESIDE = (
    sa.select(
        _B.entry_id,
        _B.attempt,
        sa.func.sum(sa.case((_B.whole_hours, 0), else_=_B.hourly_nano_usd)).label("by_second"),
        sa.func.sum(sa.case((_B.whole_hours, _B.hourly_nano_usd), else_=0)).label("by_hour"),
        sa.func.sum(sa.case((_B.hourly_nano_usd.is_(None), 1), else_=0)).label("unpriced"),
    )
    .group_by(_B.entry_id, _B.attempt)
    .subquery()
)

_EXTENSIONS = (
    sa.select(extended.c.entry_id, extended.c.attempt, sa.func.max(extended.c.expires_at).label("extended_to"))
    .group_by(extended.c.entry_id, extended.c.attempt)
    .subquery()
)

_ATTEMPTS = (
    sa.select(opened_table, _LAUNCHES.c.launched_at, _ENDED)
    .select_from(
        opened_table.outerjoin(
            _LAUNCHES, sa.and_(_LAUNCHES.c.entry_id == _O.entry_id, _LAUNCHES.c.attempt == _O.attempt)
        ).outerjoin(closed, _same_attempt(closed))
    )
    .order_by(_O.opened_at, _O.entry_id, _O.attempt)
)

ENTRIES = _ATTEMPTS.add_columns(_EXTENSIONS.c.extended_to).outerjoin(
    _EXTENSIONS, sa.and_(_EXTENSIONS.c.entry_id == _O.entry_id, _EXTENSIONS.c.attempt == _O.attempt)
)

RUNS = (
    sa.select(run_started, run_ended.c.state, run_ended.c.ended_at)
    .select_from(run_started.outerjoin(run_ended))
    .order_by(run_started.c.started_at, run_started.c.run_id)
)

_SPENDING = tuple(field.name for field in fields(Spending) if field.name != "beside")


def conditions_for(
    cluster: str | None, state: EntryState | None, since: datetime | None
) -> Sequence[sa.ColumnElement[bool]]:
    """Return the conditions that select rows of `ENTRIES` by cluster, state and time."""
    conditions: list[sa.ColumnElement[bool]] = []
    if cluster is not None:
        conditions.append(_O.cluster == cluster)
    if state is not None:
        conditions.append(_ENDED.is_(None) if state == "open" else _ENDED.is_not(None))
    if since is not None:
        conditions.append(sa.or_(_ENDED.is_(None), to_text(since) <= _ENDED))
    return conditions


def instances_query(conditions: Sequence[sa.ColumnElement[bool]]) -> sa.Select[Any]:
    """Return the query for the instances of the matching entries, in launch order."""
    joined = launched.join(opened_table, _same_attempt(launched)).outerjoin(closed, _same_attempt(closed))
    columns = (launched.c.entry_id, launched.c.attempt, launched.c.instance_id)
    return sa.select(*columns).select_from(joined).where(*conditions).order_by(launched.c.position)


_HAS_PARTS = (
    sa.exists().where(part_ended.c.entry_id == _O.entry_id, part_ended.c.attempt == _O.attempt).correlate(opened_table)
)


def part_end_conditions(since: datetime | None) -> Sequence[sa.ColumnElement[bool]]:
    """Return the conditions that select rows of `ENTRIES` with at least one recorded part end."""
    return [*conditions_for(None, None, since), _HAS_PARTS]


def part_ends_query(conditions: Sequence[sa.ColumnElement[bool]]) -> sa.Select[Any]:
    """Return the query for the part ends of the matching entries."""
    joined = part_ended.join(opened_table, _same_attempt(part_ended)).outerjoin(closed, _same_attempt(closed))
    return sa.select(part_ended).select_from(joined).where(*conditions)


def group_part_ends(part_rows: Iterable[Sequence[Any]]) -> Mapping[EntryAttempt, Mapping[Part, PartEnd]]:
    """Group rows of `part_ends_query` by entry and attempt."""
    of_attempt: dict[EntryAttempt, dict[Part, PartEnd]] = defaultdict(dict)
    for entry_id, attempt, part, ended_at, estimated in part_rows:
        of_attempt[entry_id, attempt][part] = PartEnd(from_text(ended_at), bool(estimated))
    return of_attempt


def charges_query(since: datetime | None) -> sa.Select[Any]:
    """Return the query for charges. It builds no entries, so ten thousand charges take a tenth of a second.

    Entries with recorded part ends are excluded: they are few, and each has several charges.
    """
    query = _ATTEMPTS.with_only_columns(
        _O.cluster,
        _O.run_id,
        _O.recipe,
        _O.owner,
        _O.team,
        _O.simulated,
        sa.case((_O.nodes == 0, 0), else_=sa.func.coalesce(_LAUNCHES.c.nodes, _O.nodes)),
        _O.node_hourly_usd,
        _LAUNCHES.c.launched_at,
        _O.opened_at,
        _ENDED,
        sa.func.coalesce(_BESIDE.c.by_second, 0),
        sa.func.coalesce(_BESIDE.c.by_hour, 0),
        sa.func.coalesce(_BESIDE.c.unpriced, 0),
    ).outerjoin(_BESIDE, sa.and_(_BESIDE.c.entry_id == _O.entry_id, _BESIDE.c.attempt == _O.attempt))
    return query.where(*conditions_for(None, None, since), ~_HAS_PARTS).order_by(None)


def charge_from_row(row: Sequence[Any]) -> Charge:
    """Convert a row of the `charges_query` query to a charge."""
    cluster, run_id, recipe, owner, team, simulated, nodes, price, launched_at, opened_at, closed_at, *beside = row
    by_second, by_hour, unpriced = beside
    return Charge(
        cluster=cluster,
        run_id=run_id,
        recipe=recipe,
        owner=owner,
        team=team,
        simulated=simulated,
        nodes=nodes,
        node_hourly_usd=price,
        launched=launched_at is not None,
        start=from_text(launched_at or opened_at),
        end=from_text(closed_at) if closed_at else None,
        beside_nano_usd=int(by_second),
        whole_hour_nano_usd=int(by_hour),
        unpriced=bool(unpriced),
    )


def latest_attempt(entry_id: str) -> sa.Select[Any]:
    """Return the query for the latest attempt of an entry and the time at which that attempt was closed."""
    joined = opened_table.outerjoin(closed, _same_attempt(closed))
    query = sa.select(_O.attempt, _ENDED).select_from(joined).where(_O.entry_id == entry_id)
    return query.order_by(_O.attempt.desc()).limit(1)


def opened_row(spending: Spending, attempt: int) -> dict[str, object]:
    """Return the row that opens an attempt of an entry."""
    return {name: getattr(spending, name) for name in _SPENDING} | {
        "attempt": attempt,
        "node_hourly_usd": format(spending.node_hourly_usd, "f"),
        "opened_at": to_text(spending.opened_at),
        "expires_at": to_text(spending.expires_at),
    }


def surcharge_rows(spending: Spending, attempt: int) -> list[dict[str, object]]:
    """Return the rows of an entry's surcharges."""
    return [
        {
            "entry_id": spending.entry_id,
            "attempt": attempt,
            "kind": surcharge.kind,
            "count": surcharge.count,
            "hourly_nano_usd": None if surcharge.hourly_usd is None else nano_usd(surcharge.hourly_usd),
            "whole_hours": surcharge.whole_hours,
        }
        for surcharge in spending.beside
    ]


def surcharges_query(conditions: Sequence[sa.ColumnElement[bool]]) -> sa.Select[Any]:
    """Return the query for the surcharges of the matching entries, sorted by kind."""
    joined = beside_table.join(opened_table, _same_attempt(beside_table)).outerjoin(closed, _same_attempt(closed))
    return sa.select(beside_table).select_from(joined).where(*conditions).order_by(_B.kind)


def group_surcharges(surcharge_rows: Iterable[Sequence[Any]]) -> Mapping[EntryAttempt, Sequence[Surcharge]]:
    """Group rows of `surcharges_query` by entry and attempt."""
    of_attempt: dict[EntryAttempt, list[Surcharge]] = defaultdict(list)
    for entry_id, attempt, kind, count, nano, whole_hours in surcharge_rows:
        usd = None if nano is None else Decimal(nano).scaleb(-9)
        of_attempt[entry_id, attempt].append(Surcharge(kind, count, usd, bool(whole_hours)))
    return of_attempt


def entry_from_rows(
    row: Mapping[Any, Any],
    instances: Mapping[EntryAttempt, Sequence[str]],
    beside: Mapping[EntryAttempt, Sequence[Surcharge]],
    parts: Mapping[EntryAttempt, Mapping[Part, PartEnd]],
) -> LedgerEntry:
    """Combine a row of `ENTRIES` with its instances, surcharges and part ends."""
    key = row["entry_id"], row["attempt"]
    values = {name: row[name] for name in _SPENDING} | {
        "node_hourly_usd": Decimal(row["node_hourly_usd"]),
        "opened_at": from_text(row["opened_at"]),
        "expires_at": from_text(row["extended_to"] or row["expires_at"]),
        "beside": tuple(beside.get(key, ())),
    }
    return LedgerEntry(
        spending=Spending(**values),
        state="closed" if row["closed_at"] else "open",
        instance_ids=tuple(instances.get(key, ())),
        launched_at=from_text(row["launched_at"]) if row["launched_at"] else None,
        closed_at=from_text(row["closed_at"]) if row["closed_at"] else None,
        parts=dict(parts.get(key, {})),
    )


def group_instances(instance_rows: Iterable[Sequence[Any]]) -> Mapping[EntryAttempt, Sequence[str]]:
    """Group rows of `instances_query` by entry and attempt."""
    of_attempt: dict[EntryAttempt, list[str]] = defaultdict(list)
    for entry_id, attempt, instance_id in instance_rows:
        of_attempt[entry_id, attempt].append(instance_id)
    return of_attempt


def run_from_row(row: Sequence[Any]) -> RunInterval:
    """Convert a row of the `RUNS` query to a run interval."""
    run_id, cluster, recipe, owner, team, started_at, state, ended_at = row
    end = from_text(ended_at) if ended_at else None
    return RunInterval(run_id, cluster, recipe, owner, team, state or "running", from_text(started_at), end)
