"""Maintain the cost summary: the final cost of every closed entry, split by run and day, in whole micro-dollars.

The summary is computed from the events. Each event and its effect on the summary are written in one transaction, so
that a killed command leaves both or neither. The summary also stores the number of events that it includes. If the
ledger contains more events, because an older version of cloudgpu wrote to it, the summary is recomputed before it is
used again.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from cloudgpu.ledger import schema
from cloudgpu.ledger.billing import Bill, Charge, ParsedPrices, RunIndex
from cloudgpu.ledger.billing import charges as charges_of
from cloudgpu.ledger.conversion import EntryAttempt, charge_from_row, run_from_row
from cloudgpu.ledger.entry import to_text
from cloudgpu.ledger.report import shares
from cloudgpu.ledger.summary_queries import COUNT_EVENTS, RULES, Read, entries_of, runs_of

LARGEST = 10**15
"""Largest amount in a row of the summary. The sum of nine thousand such rows still fits in 64 bits."""
_BATCH = 5000


def reader(connection: sa.Connection) -> Read:
    """Return a function that executes SQL text on a connection and returns the rows."""

    def read(statement: str, parameters: Mapping[str, object]) -> Sequence[Sequence[Any]]:
        return connection.execute(sa.text(statement), dict(parameters)).all()

    return read


def begin(connection: sa.Connection) -> None:
    """Start the summary of a ledger without events."""
    connection.execute(sa.insert(schema.cost_summary_state).values(events=0, rules=RULES))


def count_event(connection: sa.Connection) -> None:
    """Increase the summary's number of events by one. An incomplete summary stays incomplete."""
    events = schema.cost_summary_state.c.events
    connection.execute(sa.update(schema.cost_summary_state).values(events=events + 1))


def add_open(connection: sa.Connection, attempt: EntryAttempt) -> None:
    """List an open attempt as pending, because its cost depends on the time of the report."""
    connection.execute(sa.insert(schema.cost_pending).values(entry_id=attempt[0], attempt=attempt[1]))


def update_entries(connection: sa.Connection, attempts: Iterable[EntryAttempt]) -> None:
    """Compute the costs of closed attempts, and replace their rows in the summary."""
    read = reader(connection)
    for attempt, entry in entries_of(read, attempts).items():
        for table in (schema.cost_summary, schema.cost_pending):
            connection.execute(sa.delete(table).filter_by(entry_id=attempt[0], attempt=attempt[1]))
        charges = charges_of(entry)
        runs = runs_of(read, charges, entry.closed_at or entry.spending.opened_at)
        _insert(connection, {attempt: charges}, RunIndex(runs))


def update_run(connection: sa.Connection, run_id: str) -> None:
    """Update the closed attempts whose costs a run shares. A run may be recorded after its nodes have terminated."""
    run = run_from_row(connection.execute(schema.RUNS.where(schema.run_started.c.run_id == run_id)).one())
    summary = schema.cost_summary.c
    started = to_text(run.started_at)
    ended = to_text(max(run.started_at, run.ended_at or run.started_at))
    affected = sa.select(summary.entry_id, summary.attempt).where(
        summary.cluster == run.cluster, summary.until > started, summary.starts_at <= ended
    )
    update_entries(connection, {(entry_id, attempt) for entry_id, attempt in connection.execute(affected)})


def rebuild(connection: sa.Connection) -> None:
    """Recompute the summary from all events."""
    for table in schema.SUMMARY:
        connection.execute(sa.delete(table))
    index = RunIndex(run_from_row(row) for row in connection.execute(schema.RUNS))
    for batch in connection.execute(schema.charges_query()).partitions(_BATCH):
        _insert(connection, {(entry_id, attempt): [charge_from_row(row)] for entry_id, attempt, *row in batch}, index)
    with_parts = {(entry_id, attempt) for entry_id, attempt in connection.execute(schema.ATTEMPTS_WITH_PART_ENDS)}
    entries = entries_of(reader(connection), with_parts)
    # An open entry is not final even if all of its parts have ended: its launch may still be recorded.
    final = {attempt: charges_of(entry) if entry.state == "closed" else [] for attempt, entry in entries.items()}
    _insert(connection, final, index)
    events = connection.scalar(sa.text(COUNT_EVENTS))
    connection.execute(sa.insert(schema.cost_summary_state).values(events=events, rules=RULES))


def _insert(connection: sa.Connection, charges: Mapping[EntryAttempt, Sequence[Charge]], index: RunIndex) -> None:
    """Write the shares of attempts with final charges to the summary, and list all other attempts as pending."""
    summarized: list[dict[str, object]] = []
    pending: list[dict[str, object]] = []
    rates = ParsedPrices()
    for (entry_id, attempt), of_attempt in charges.items():
        key = {"entry_id": entry_id, "attempt": attempt}
        bills = [(charge, rates.bill(charge, charge.end)) for charge in of_attempt if charge.end is not None]
        if (
            not bills
            or len(bills) < len(of_attempt)
            or any(max(bill.micro_usd, bill.node_ms) > LARGEST for _, bill in bills)
        ):
            pending.append(key)
        else:
            summarized += [
                key | row for number, (charge, bill) in enumerate(bills) for row in _rows(number, charge, bill, index)
            ]
    for table, written in ((schema.cost_summary, summarized), (schema.cost_pending, pending)):
        if written:
            connection.execute(sa.insert(table), written)


def _rows(number: int, charge: Charge, bill: Bill, index: RunIndex) -> list[dict[str, object]]:
    counted = not charge.free
    return [
        {
            "charge": number,
            "share": share_number,
            "cluster": charge.cluster,
            "owner": charge.owner,
            "team": charge.team,
            "recipe": share.owner.recipe,
            "run": share.owner.run,
            "run_id": share.owner.run_id,
            "instance_type": charge.instance_type,
            "day": share.day,
            "week": share.week,
            "simulated": charge.simulated,
            "micro_usd": share.micro_usd,
            "node_ms": share.node_ms,
            "idle_micro_usd": share.micro_usd if share.owner.idle else 0,
            "unpriced": int(charge.unpriced and counted),
            "estimated": int(charge.estimated and counted),
            "starts_at": to_text(charge.start),
            "until": to_text(bill.until),
        }
        for share_number, share in enumerate(shares(charge, index.overlapping(charge, bill.until), bill))
    ]
