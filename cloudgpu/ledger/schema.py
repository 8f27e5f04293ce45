"""The tables of the ledger and the queries over them.

The events never change; the cost summary is computed from them. Queries combine an entry's events into one row.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

from cloudgpu.ledger.billing import nano_usd
from cloudgpu.ledger.conversion import SPENDING_COLUMNS
from cloudgpu.ledger.entry import EntryState, Spending, to_text

metadata = MetaData()

version = Table("cloudgpu_ledger", metadata, Column("version", Integer, primary_key=True))

# Times are UTC text with microseconds, so that they sort as text in every database. Prices are text to stay exact.
# `attempt` counts the launch attempts of one entry, because a candidate that had no capacity may be tried again.
opened = Table(
    "opened",
    metadata,
    Column("entry_id", String(200), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("cluster", String(200), nullable=False, index=True),
    Column("run_id", String(200), nullable=False),
    Column("recipe", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("team", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("simulated", Boolean(create_constraint=True), nullable=False),
    Column("account", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("region", Text, nullable=False),
    Column("zone", Text, nullable=False),
    Column("instance_type", Text, nullable=False),
    Column("market", Text, nullable=False),
    Column("nodes", Integer, nullable=False),
    Column("node_hourly_usd", Text, nullable=False),
    Column("opened_at", String(32), nullable=False),
    Column("expires_at", String(32), nullable=False),
)

# Surcharges of an entry; added in format 3. Prices are whole nano-dollars, which every database sums exactly; NULL
# means that the price is unknown.
beside = Table(
    "beside",
    metadata,
    Column("entry_id", String(200), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("kind", String(64), primary_key=True),
    Column("count", Integer, nullable=False),
    Column("hourly_nano_usd", BigInteger, nullable=True),
    Column("whole_hours", Boolean(create_constraint=True), nullable=False),
    ForeignKeyConstraint(["entry_id", "attempt"], ["opened.entry_id", "opened.attempt"]),
)

# One row per instance, so that recording a launch again after a crash does not add rows.
launched = Table(
    "launched",
    metadata,
    Column("entry_id", String(200), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("instance_id", String(64), primary_key=True),
    Column("position", BigInteger, nullable=False),
    Column("launched_at", String(32), nullable=False),
    ForeignKeyConstraint(["entry_id", "attempt"], ["opened.entry_id", "opened.attempt"]),
)

# Extensions of the expiry. The latest time applies.
extended = Table(
    "extended",
    metadata,
    Column("entry_id", String(200), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("expires_at", String(32), primary_key=True),
    Column("extended_at", String(32), nullable=False),
    ForeignKeyConstraint(["entry_id", "attempt"], ["opened.entry_id", "opened.attempt"]),
)

closed = Table(
    "closed",
    metadata,
    Column("entry_id", String(200), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("closed_at", String(32), nullable=False),
    ForeignKeyConstraint(["entry_id", "attempt"], ["opened.entry_id", "opened.attempt"]),
)

# Ends of parts that ended before their entry was closed, or whose end time is an upper bound; added in format 4.
# `part` is one of `entry.Part`. An entry without such rows ended as a whole, at the time that the cloud reported.
part_ended = Table(
    "part_ended",
    metadata,
    Column("entry_id", String(200), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("part", String(32), primary_key=True),
    Column("ended_at", String(32), nullable=False),
    Column("estimated", Boolean(create_constraint=True), nullable=False),
    ForeignKeyConstraint(["entry_id", "attempt"], ["opened.entry_id", "opened.attempt"]),
)

run_started = Table(
    "run_started",
    metadata,
    Column("run_id", String(200), primary_key=True),
    Column("cluster", String(200), nullable=False),
    Column("recipe", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("team", Text, nullable=False),
    Column("started_at", String(32), nullable=False),
    Index("run_started_cluster", "cluster", "started_at"),
)

run_ended = Table(
    "run_ended",
    metadata,
    Column("run_id", String(200), ForeignKey("run_started.run_id"), primary_key=True),
    Column("state", String(32), nullable=False),
    Column("ended_at", String(32), nullable=False),
    Index("run_ended_at", "ended_at"),
)

# The cost summary, added in format 5, by day since format 6. It can be recomputed from the events at any time: see
# `summary.py`. Each row is the share of one run, or of idle time, in a charge of a closed entry on one day (UTC);
# `charge` and `share` are indexes that start at 0, and `week` is a Monday. `starts_at` and `until` are the charge's.
# Amounts are whole micro-dollars and node-milliseconds, which every database sums exactly. A row whose `run` and
# `recipe` are NULL costs nothing and only records that the run used the charge's cluster.
cost_summary = Table(
    "cost_summary",
    metadata,
    Column("entry_id", String(200), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("charge", Integer, primary_key=True),
    Column("share", Integer, primary_key=True),
    Column("cluster", String(200), nullable=False),
    Column("owner", Text, nullable=False),
    Column("team", Text, nullable=False),
    Column("recipe", Text, nullable=True),
    Column("run", Text, nullable=True),
    Column("run_id", String(200), nullable=True, index=True),
    Column("instance_type", Text, nullable=False),
    Column("day", String(10), nullable=False),
    Column("week", String(10), nullable=False),
    Column("simulated", Boolean(create_constraint=True), nullable=False),
    Column("micro_usd", BigInteger, nullable=False),
    Column("node_ms", BigInteger, nullable=False),
    Column("idle_micro_usd", BigInteger, nullable=False),
    Column("unpriced", Integer, nullable=False),
    Column("estimated", Integer, nullable=False),
    Column("starts_at", String(32), nullable=False),
    Column("until", String(32), nullable=False),
    Index("cost_summary_cluster", "cluster", "until", "starts_at"),
    Index("cost_summary_until", "until", "starts_at"),
)

# Attempts without rows in `cost_summary`: open attempts, and closed attempts whose amounts are so large that sums of
# the column could overflow.
cost_pending = Table(
    "cost_pending",
    metadata,
    Column("entry_id", String(200), primary_key=True),
    Column("attempt", Integer, primary_key=True),
)

# At most one row: the number of events in the summary, and the version of the rules by which it was computed. Reports
# use the summary only if both are current.
cost_summary_state = Table(
    "cost_summary_state",
    metadata,
    Column("events", BigInteger, primary_key=True, autoincrement=False),
    Column("rules", Integer, nullable=False),
)

SUMMARY = (cost_summary, cost_pending, cost_summary_state)
"""The tables that are computed from the events."""
EVENTS = (opened, beside, launched, extended, closed, part_ended, run_started, run_ended)
"""The append-only tables."""
ADDED_INDEXES = tuple(run_ended.indexes)
"""Indexes that format 5 added to tables of older formats."""


def append_only_triggers() -> list[str]:
    """Return the SQL statements that create SQLite triggers against changing or deleting an event."""
    return [
        f"CREATE TRIGGER IF NOT EXISTS {table.name}_{verb.lower()} BEFORE {verb} ON {table.name} "
        f"BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
        for table in EVENTS
        for verb in ("UPDATE", "DELETE")
    ]


_O = opened.c
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

_B = beside.c
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
    sa.select(opened, _LAUNCHES.c.launched_at, _ENDED)
    .select_from(
        opened.outerjoin(
            _LAUNCHES, sa.and_(_LAUNCHES.c.entry_id == _O.entry_id, _LAUNCHES.c.attempt == _O.attempt)
        ).outerjoin(closed, _same_attempt(closed))
    )
    .order_by(_O.opened_at, _O.entry_id, _O.attempt)
)

# Scalar subqueries, so that the database reads only the launches and extensions of the matching entries.
ENTRIES = (
    sa.select(
        opened,
        sa.select(sa.func.min(launched.c.launched_at))
        .where(_same_attempt(launched))
        .correlate(opened)
        .scalar_subquery()
        .label("launched_at"),
        _ENDED,
        sa.select(sa.func.max(extended.c.expires_at))
        .where(_same_attempt(extended))
        .correlate(opened)
        .scalar_subquery()
        .label("extended_to"),
    )
    .select_from(opened.outerjoin(closed, _same_attempt(closed)))
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
    joined = launched.join(opened, _same_attempt(launched)).outerjoin(closed, _same_attempt(closed))
    columns = (launched.c.entry_id, launched.c.attempt, launched.c.instance_id)
    return sa.select(*columns).select_from(joined).where(*conditions).order_by(launched.c.position)


ATTEMPTS_WITH_PART_ENDS = sa.select(part_ended.c.entry_id, part_ended.c.attempt).distinct()
"""The attempts with at least one recorded part end."""
_HAS_PARTS = (
    sa.exists().where(part_ended.c.entry_id == _O.entry_id, part_ended.c.attempt == _O.attempt).correlate(opened)
)


def part_ends_query(conditions: Sequence[sa.ColumnElement[bool]]) -> sa.Select[Any]:
    """Return the query for the part ends of the matching entries."""
    joined = part_ended.join(opened, _same_attempt(part_ended)).outerjoin(closed, _same_attempt(closed))
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
    joined = opened.outerjoin(closed, _same_attempt(closed))
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
    joined = beside.join(opened, _same_attempt(beside)).outerjoin(closed, _same_attempt(closed))
    return sa.select(beside).select_from(joined).where(*conditions).order_by(_B.kind)
