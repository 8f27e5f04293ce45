"""The ledger. A cost is recorded before the call that incurs it, and closed when the resource is confirmed deleted."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from types import TracebackType
from typing import Self

import sqlalchemy as sa

from cloudgpu.errors import LedgerError
from cloudgpu.ledger import database, schema, summary
from cloudgpu.ledger.billing import RunInterval
from cloudgpu.ledger.billing import charges as charges_of
from cloudgpu.ledger.conversion import (
    charge_from_row,
    entry_from_rows,
    group_instances,
    group_part_ends,
    group_surcharges,
    run_from_row,
)
from cloudgpu.ledger.entry import EntryState, LedgerEntry, Part, Spending, to_text
from cloudgpu.ledger.report import By, CostReport, ReportQuery, report
from cloudgpu.ledger.summary_queries import entries_of, is_complete, summarized_report
from cloudgpu.text import plural

_PLEASE_REPORT = "nothing was recorded or launched; please report this bug"
_ANOTHER = "check that this is the right ledger: `cloudgpu config` shows its location as ledger_url"


def open_ledger(url: str, *, may_read_only: bool = False) -> "Ledger":
    """Open the ledger at an SQLAlchemy URL. A missing SQLite file is created.

    If `may_read_only` is true, a file that cannot be written is opened read-only.
    """
    return Ledger(database.connect(url, may_read_only=may_read_only))


@dataclass(frozen=True)
class Ledger:
    """An open ledger. Every change is one durable transaction. Several processes may use a ledger concurrently."""

    engine: sa.Engine

    def open(self, spending: Spending) -> None:
        """Record an expected cost. If the entry is already open, change nothing.

        A closed entry is reopened as a new attempt, because a candidate that had no capacity may be tried again.
        """
        _refuse_invalid(spending)
        with database.write_transaction(self.engine) as connection:
            last = _last(connection, spending.entry_id)
            if not last.is_open:
                attempt = last.number + 1
                _record(connection, schema.opened, schema.opened_row(spending, attempt))
                surcharges = schema.surcharge_rows(spending, attempt)
                if surcharges:
                    connection.execute(sa.insert(schema.beside), surcharges)
                summary.add_open(connection, (spending.entry_id, attempt))

    def launched(self, entry_id: str, instance_ids: Sequence[str], at: datetime) -> None:
        """Record launched instances. Instances that are already recorded keep their launch time."""
        with database.write_transaction(self.engine) as connection:
            last = _known(connection, entry_id)
            if not last.is_open:
                late = ", ".join(instance_ids)
                raise LedgerError(
                    f"ledger entry {entry_id} is closed, but its launch created {late}",
                    hint="run `cloudgpu down CLUSTER`, which finds instances by their tags and deletes them",
                )
            key = {"entry_id": entry_id, "attempt": last.number}
            known = _instances(connection, key)
            new = [instance_id for instance_id in dict.fromkeys(instance_ids) if instance_id not in known]
            events = [
                key | {"instance_id": instance_id, "position": position, "launched_at": to_text(at)}
                for position, instance_id in enumerate(new, start=len(known))
            ]
            if events:
                connection.execute(sa.insert(schema.launched), events)

    def extend(self, entry_id: str, until: datetime, at: datetime) -> None:
        """Record a new expiry for the nodes.

        The latest recorded time applies; recording a time twice changes nothing.
        """
        with database.write_transaction(self.engine) as connection:
            last = _known(connection, entry_id)
            if not last.is_open:
                raise LedgerError(f"ledger entry {entry_id} is closed and cannot be extended", hint=_ANOTHER)
            event = {"entry_id": entry_id, "attempt": last.number, "expires_at": to_text(until)}
            known = sa.select(sa.literal(1)).select_from(schema.extended).filter_by(**event)
            if connection.scalar(known) is None:
                connection.execute(sa.insert(schema.extended).values(**event, extended_at=to_text(at)))

    def close(self, entry_id: str, at: datetime) -> None:
        """Close an entry at its confirmed end, unless it is closed already. An entry without a launch costs nothing."""
        with database.write_transaction(self.engine) as connection:
            last = _known(connection, entry_id)
            if last.is_open:
                event = {"entry_id": entry_id, "attempt": last.number, "closed_at": to_text(at)}
                _record(connection, schema.closed, event)
                summary.update_entries(connection, [(entry_id, last.number)])

    def part_ended(self, entry_id: str, part: Part, at: datetime, *, estimated: bool = False) -> None:
        """Record the end of a part of an open entry. If the part has an end or the entry is closed, change nothing."""
        with database.write_transaction(self.engine) as connection:
            last = _known(connection, entry_id)
            key = {"entry_id": entry_id, "attempt": last.number, "part": part}
            known = sa.select(sa.literal(1)).select_from(schema.part_ended).filter_by(**key)
            if last.is_open and connection.scalar(known) is None:
                event = {**key, "ended_at": to_text(at), "estimated": estimated}
                _record(connection, schema.part_ended, event)

    def run_started(self, run_id: str, cluster: str, recipe: str, owner: str, team: str, at: datetime) -> None:
        """Record that a run started to use a cluster at `at`. If a start is already recorded, change nothing."""
        row = {"run_id": run_id, "cluster": cluster, "recipe": recipe, "owner": owner, "team": team}
        with database.write_transaction(self.engine) as connection:
            if not _has_run(connection, schema.run_started, run_id):
                _record(connection, schema.run_started, row | {"started_at": to_text(at)})
                summary.update_run(connection, run_id)

    def run_ended(self, run_id: str, state: str, at: datetime) -> None:
        """Record the final state and end of a run. If an end is already recorded, change nothing."""
        with database.write_transaction(self.engine) as connection:
            if not _has_run(connection, schema.run_started, run_id):
                raise LedgerError(f"the ledger has no run {run_id}", hint=_ANOTHER)
            if not _has_run(connection, schema.run_ended, run_id):
                _record(connection, schema.run_ended, {"run_id": run_id, "state": state, "ended_at": to_text(at)})
                summary.update_run(connection, run_id)

    def entries(
        self,
        *,
        cluster: str | None = None,
        state: EntryState | None = None,
        since: datetime | None = None,
        token: str | None = None,
    ) -> tuple[LedgerEntry, ...]:
        """Return entries in the order in which they were opened.

        Args:
            cluster: Return only entries of this cluster.
            state: Return only open or only closed entries.
            since: Return only entries that are open or were closed at or after this time.
            token: Return only entries whose IDs start with this token, the token of a cluster or storage.
        """
        with database.read_transaction(self.engine) as connection:
            if token is None:
                return _entries(connection, schema.conditions_for(cluster, state, since))
            # Search by token: a cluster name may be reused for thousands of entries, but each token has only a few.
            conditions = [
                *schema.token_conditions(token, connection.dialect.name),
                *schema.conditions_for(None, state, since),
            ]
            found = _entries(connection, conditions)
            return tuple(entry for entry in found if cluster in (None, entry.spending.cluster))

    def report(
        self,
        *,
        by: By,
        now: datetime,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> CostReport:
        """Return the costs by one key. The arguments are those of `ReportQuery`."""
        return self.query(ReportQuery(by, now, since, until, limit))

    def query(self, query: ReportQuery) -> CostReport:
        """Return a cost report. Which of several rows of equal cost a limit omits depends on the database."""
        with database.read_transaction(self.engine) as connection:
            read = summary.reader(connection)
            if is_complete(read):
                return summarized_report(read, query)
        # The format was just updated, or an older version wrote to the ledger. If this fails, reports are only slower.
        with suppress(LedgerError), database.write_transaction(self.engine) as connection:
            summary.rebuild(connection)
        return self.recomputed_report(query)

    def recomputed_report(self, query: ReportQuery) -> CostReport:
        """Return the same report as `query`, computed from the events without the summary."""
        with database.read_transaction(self.engine) as connection:
            charges = [charge_from_row(row[2:]) for row in connection.execute(schema.charges_query())]
            with_parts = {
                (entry_id, attempt) for entry_id, attempt in connection.execute(schema.ATTEMPTS_WITH_PART_ENDS)
            }
            for entry in entries_of(summary.reader(connection), with_parts).values():
                charges += charges_of(entry)
            runs = [run_from_row(row) for row in connection.execute(schema.RUNS)]
        return report(charges, runs, query)

    def runs(self) -> tuple[RunInterval, ...]:
        """Return every run with the time during which it used its cluster."""
        with database.read_transaction(self.engine) as connection:
            return tuple(run_from_row(row) for row in connection.execute(schema.RUNS))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.engine.dispose()


def _entries(connection: sa.Connection, conditions: Sequence[sa.ColumnElement[bool]]) -> tuple[LedgerEntry, ...]:
    entry_rows = connection.execute(schema.ENTRIES.where(*conditions)).mappings().all()
    instances = group_instances(connection.execute(schema.instances_query(conditions)))
    surcharges = group_surcharges(connection.execute(schema.surcharges_query(conditions)))
    parts = group_part_ends(connection.execute(schema.part_ends_query(conditions)))
    return tuple(entry_from_rows(row, instances, surcharges, parts) for row in entry_rows)


@dataclass(frozen=True)
class _Attempt:
    """The latest attempt of an entry. `number` is 0 if the entry does not exist."""

    number: int
    is_open: bool


def _last(connection: sa.Connection, entry_id: str) -> _Attempt:
    row = connection.execute(schema.latest_attempt(entry_id)).first()
    return _Attempt(row[0], row[1] is None) if row else _Attempt(0, is_open=False)


def _known(connection: sa.Connection, entry_id: str) -> _Attempt:
    last = _last(connection, entry_id)
    if not last.number:
        raise LedgerError(f"the ledger has no entry {entry_id}", hint=_ANOTHER)
    return last


def _instances(connection: sa.Connection, key: Mapping[str, object]) -> set[str]:
    return set(connection.scalars(sa.select(schema.launched.c.instance_id).filter_by(**key)))


def _record(connection: sa.Connection, table: sa.Table, event: Mapping[str, object]) -> None:
    """Write an event and include it in the cost summary's number of events."""
    connection.execute(sa.insert(table).values(event))
    summary.count_event(connection)


def _has_run(connection: sa.Connection, table: sa.Table, run_id: str) -> bool:
    return connection.scalar(sa.select(sa.literal(1)).where(table.c.run_id == run_id)) is not None


def _refuse_invalid(spending: Spending) -> None:
    """Reject invalid amounts, because a recorded row cannot be corrected later."""
    price = spending.node_hourly_usd
    if not _is_valid(price) or spending.nodes < (0 if spending.beside else 1):
        message = f"{plural(spending.nodes, 'node')} at {price} USD per hour is not a valid cost"
        raise LedgerError(f"ledger entry {spending.entry_id}: {message}", hint=_PLEASE_REPORT)
    for surcharge in spending.beside:
        if surcharge.hourly_usd is not None and not _is_valid(surcharge.hourly_usd):
            message = f"{surcharge.count} {surcharge.kind} at {surcharge.hourly_usd} USD per hour is not a valid cost"
            raise LedgerError(f"ledger entry {spending.entry_id}: {message}", hint=_PLEASE_REPORT)


def _is_valid(price: Decimal) -> bool:
    return price.is_finite() and price >= 0
