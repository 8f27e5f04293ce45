"""The tables of the ledger: events, which never change, and the cost summary, which is computed from them."""

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
