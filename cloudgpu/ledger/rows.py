"""Queries that combine an entry's events into one row, and conversions from objects to rows."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from cloudgpu.ledger.billing import nano_usd
from cloudgpu.ledger.conversion import SPENDING_COLUMNS
from cloudgpu.ledger.entry import EntryState, Spending, to_text
from cloudgpu.ledger.schema import beside as beside_table
from cloudgpu.ledger.schema import closed, extended, launched, part_ended, run_ended, run_started
from cloudgpu.ledger.schema import opened as opened_table

_O = opened_table.c
_ENDED = closed.c.closed_at


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

_ATTEMPTS = (
    sa.select(opened_table, _LAUNCHES.c.launched_at, _ENDED)
    .select_from(
        opened_table.outerjoin(
            _LAUNCHES, sa.and_(_LAUNCHES.c.entry_id == _O.entry_id, _LAUNCHES.c.attempt == _O.attempt)
        ).outerjoin(closed, _same_attempt(closed))
    )
    .order_by(_O.opened_at, _O.entry_id, _O.attempt)
)

# Scalar subqueries, so that the database reads only the launches and extensions of the matching entries.
ENTRIES = (
    sa.select(
        opened_table,
        sa.select(sa.func.min(launched.c.launched_at))
        .where(_same_attempt(launched))
        .correlate(opened_table)
        .scalar_subquery()
        .label("launched_at"),
        _ENDED,
        sa.select(sa.func.max(extended.c.expires_at))
        .where(_same_attempt(extended))
        .correlate(opened_table)
        .scalar_subquery()
        .label("extended_to"),
    )
    .select_from(opened_table.outerjoin(closed, _same_attempt(closed)))
    .order_by(_O.opened_at, _O.entry_id, _O.attempt)
)

RUNS = (
    sa.select(run_started, run_ended.c.state, run_ended.c.ended_at)
    .select_from(run_started.outerjoin(run_ended))
    .order_by(run_started.c.started_at, run_started.c.run_id)
)


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


def token_conditions(token: str, dialect: str) -> Sequence[sa.ColumnElement[bool]]:
    """Return the conditions that select rows of `ENTRIES` whose entry IDs start with a token and a slash."""
    if dialect == "sqlite":  # a range scan of the primary key: SQLite compares bytes, and "0" follows "/"
        return [_O.entry_id >= f"{token}/", _O.entry_id < f"{token}0"]
    return [sa.func.substr(_O.entry_id, 1, len(token) + 1) == f"{token}/"]


def instances_query(conditions: Sequence[sa.ColumnElement[bool]]) -> sa.Select[Any]:
    """Return the query for the instances of the matching entries, in launch order."""
    joined = launched.join(opened_table, _same_attempt(launched)).outerjoin(closed, _same_attempt(closed))
    columns = (launched.c.entry_id, launched.c.attempt, launched.c.instance_id)
    return sa.select(*columns).select_from(joined).where(*conditions).order_by(launched.c.position)


ATTEMPTS_WITH_PART_ENDS = sa.select(part_ended.c.entry_id, part_ended.c.attempt).distinct()
"""The attempts with at least one recorded part end."""
_HAS_PARTS = (
    sa.exists().where(part_ended.c.entry_id == _O.entry_id, part_ended.c.attempt == _O.attempt).correlate(opened_table)
)


def part_ends_query(conditions: Sequence[sa.ColumnElement[bool]]) -> sa.Select[Any]:
    """Return the query for the part ends of the matching entries."""
    joined = part_ended.join(opened_table, _same_attempt(part_ended)).outerjoin(closed, _same_attempt(closed))
    return sa.select(part_ended).select_from(joined).where(*conditions)


def charges_query() -> sa.Select[Any]:
    """Return the query for the charges of all attempts without recorded part ends, one row for each attempt.

    Reading charges directly is much faster than building entries: ten thousand charges take a tenth of a second.
    Attempts with part ends are excluded, because there are few of them and each has several charges.
    """
    query = _ATTEMPTS.with_only_columns(
        _O.entry_id,
        _O.attempt,
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
        _O.instance_type,
    ).outerjoin(_BESIDE, sa.and_(_BESIDE.c.entry_id == _O.entry_id, _BESIDE.c.attempt == _O.attempt))
    return query.where(~_HAS_PARTS).order_by(None)


def latest_attempt(entry_id: str) -> sa.Select[Any]:
    """Return the query for the latest attempt of an entry and the time at which that attempt was closed."""
    joined = opened_table.outerjoin(closed, _same_attempt(closed))
    query = sa.select(_O.attempt, _ENDED).select_from(joined).where(_O.entry_id == entry_id)
    return query.order_by(_O.attempt.desc()).limit(1)


def opened_row(spending: Spending, attempt: int) -> dict[str, object]:
    """Return the row that opens an attempt of an entry."""
    return {name: getattr(spending, name) for name in SPENDING_COLUMNS} | {
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
