"""The ledger of what costs money: rows are written before the call and closed after the deletion is confirmed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from types import TracebackType
from typing import Self

import sqlalchemy as sa

from cloudgpu.errors import LedgerError
from cloudgpu.ledger import database, rows, schema
from cloudgpu.ledger.attribution import RunInterval
from cloudgpu.ledger.billing import MINIMUM_S
from cloudgpu.ledger.billing import charges as split
from cloudgpu.ledger.entry import Entry, EntryState, Part, Spending
from cloudgpu.ledger.report import By, Report, report
from cloudgpu.ledger.times import to_text

_PLEASE_REPORT = "nothing was written and nothing bought; please report this"
_ANOTHER = "was it written to another ledger? `cloudgpu config` shows which one is used (ledger_url)"


def open_ledger(url: str, *, may_read_only: bool = False) -> "Ledger":
    """Open the ledger at an SQLAlchemy URL, creating an SQLite file if it does not exist.

    With `may_read_only`, a file on a read-only disk is opened for reading.

    Raises:
        LedgerError: The ledger cannot be used; the hint explains what to do.
    """
    return Ledger(database.connect(url, may_read_only=may_read_only))


@dataclass(frozen=True)
class Ledger:
    """The ledger. Every method is one durable transaction. Several processes may use a ledger concurrently."""

    engine: sa.Engine

    def open(self, spending: Spending) -> None:
        """Write down what is about to be bought. Writing an open entry again changes nothing.

        An entry that is closed is opened anew: a candidate that was refused may be tried again.

        Raises:
            LedgerError: No bill could add the entry up, or the ledger is unusable.
        """
        _refuse_senseless(spending)
        with database.writing(self.engine) as connection:
            last = _last(connection, spending.entry_id)
            if not last.is_open:
                connection.execute(sa.insert(schema.opened).values(rows.opened(spending, last.attempt + 1)))
                beside = rows.besides(spending, last.attempt + 1)
                if beside:
                    connection.execute(sa.insert(schema.beside), beside)

    def launched(self, entry_id: str, instance_ids: Sequence[str], at: datetime) -> None:
        """Record the launched instances. An instance that is already recorded keeps its time.

        Raises:
            LedgerError: The entry does not exist or is closed, or the ledger is unusable.
        """
        with database.writing(self.engine) as connection:
            last = _known(connection, entry_id)
            if not last.is_open:
                late = ", ".join(instance_ids)
                raise LedgerError(
                    f"ledger entry {entry_id} is closed, but {late} was launched for it",
                    hint="`cloudgpu down` with the cluster's name finds it by its tag and deletes it",
                )
            purchase = {"entry_id": entry_id, "attempt": last.attempt}
            known = _instances(connection, purchase)
            fresh = [instance_id for instance_id in dict.fromkeys(instance_ids) if instance_id not in known]
            events = [
                purchase | {"instance_id": instance_id, "position": position, "launched_at": to_text(at)}
                for position, instance_id in enumerate(fresh, start=len(known))
            ]
            if events:
                connection.execute(sa.insert(schema.launched), events)

    def extend(self, entry_id: str, until: datetime, at: datetime) -> None:
        """Record a later expiry. The latest one counts; repeating it has no effect.

        Raises:
            LedgerError: The entry does not exist or is closed, or the ledger is unusable.
        """
        with database.writing(self.engine) as connection:
            last = _known(connection, entry_id)
            if not last.is_open:
                raise LedgerError(f"ledger entry {entry_id} is closed: there is nothing to extend", hint=_ANOTHER)
            event = {"entry_id": entry_id, "attempt": last.attempt, "expires_at": to_text(until)}
            known = sa.select(sa.literal(1)).select_from(schema.extended).filter_by(**event)
            if connection.scalar(known) is None:
                connection.execute(sa.insert(schema.extended).values(**event, extended_at=to_text(at)))

    def close(self, entry_id: str, at: datetime) -> None:
        """Write down that the cloud confirmed the end. The first close counts; an entry never launched costs nothing.

        Raises:
            LedgerError: There is no such entry, or the ledger is unusable.
        """
        with database.writing(self.engine) as connection:
            last = _known(connection, entry_id)
            if last.is_open:
                event = {"entry_id": entry_id, "attempt": last.attempt, "closed_at": to_text(at)}
                connection.execute(sa.insert(schema.closed).values(event))

    def part_ended(self, entry_id: str, part: Part, at: datetime, *, estimated: bool = False) -> None:
        """Record when a part of an open entry ended. The first end counts; closed entries do not change.

        Raises:
            LedgerError: The entry does not exist, or the ledger is unusable.
        """
        with database.writing(self.engine) as connection:
            last = _known(connection, entry_id)
            key = {"entry_id": entry_id, "attempt": last.attempt, "part": part}
            known = sa.select(sa.literal(1)).select_from(schema.part_ended).filter_by(**key)
            if last.is_open and connection.scalar(known) is None:
                event = {**key, "ended_at": to_text(at), "estimated": estimated}
                connection.execute(sa.insert(schema.part_ended).values(event))

    def run_started(self, run_id: str, cluster: str, recipe: str, owner: str, team: str, at: datetime) -> None:
        """Write down that a run uses a cluster from now on. The first start counts.

        Raises:
            LedgerError: The ledger is unusable.
        """
        row = {"run_id": run_id, "cluster": cluster, "recipe": recipe, "owner": owner, "team": team}
        with database.writing(self.engine) as connection:
            if not _has_run(connection, schema.run_started, run_id):
                connection.execute(sa.insert(schema.run_started).values(**row, started_at=to_text(at)))

    def run_ended(self, run_id: str, state: str, at: datetime) -> None:
        """Write down that a run is over. The first end counts.

        Raises:
            LedgerError: No such run was started, or the ledger is unusable.
        """
        with database.writing(self.engine) as connection:
            if not _has_run(connection, schema.run_started, run_id):
                raise LedgerError(f"the ledger has no run {run_id}", hint=_ANOTHER)
            if not _has_run(connection, schema.run_ended, run_id):
                connection.execute(sa.insert(schema.run_ended).values(run_id=run_id, state=state, ended_at=to_text(at)))

    def entries(
        self, *, cluster: str | None = None, state: EntryState | None = None, since: datetime | None = None
    ) -> tuple[Entry, ...]:
        """Return entries in the order they were opened.

        Args:
            cluster: Only entries of this cluster.
            state: Only open, or only closed entries.
            since: Only entries that are open or were closed at or after this time.

        Raises:
            LedgerError: The ledger is unusable.
        """
        with database.reading(self.engine) as connection:
            return _entries(connection, rows.wanted(cluster, state, since))

    def report(self, *, by: By, now: datetime, since: datetime | None = None) -> Report:
        """Return the bill by user, team, run, recipe or cluster. Open entries accrue until `now`.

        Args:
            by: What a row stands for.
            now: End of open entries.
            since: Ignore everything before this time.

        Raises:
            LedgerError: The ledger is unusable.
        """
        # A closed entry may be charged for up to a minute after its end.
        reach = None if since is None else since - timedelta(seconds=MINIMUM_S)
        with database.reading(self.engine) as connection:
            charges = [rows.charge(row) for row in connection.execute(rows.charges(reach)).all()]
            charges += [charge for entry in _entries(connection, rows.in_parts(reach)) for charge in split(entry)]
            runs = [rows.run(row) for row in connection.execute(rows.RUNS).all()]
        return report(charges, runs, by=by, since=since, now=now)

    def runs(self) -> tuple[RunInterval, ...]:
        """Return every run with the time it used its cluster.

        Raises:
            LedgerError: The ledger is unusable.
        """
        with database.reading(self.engine) as connection:
            return tuple(rows.run(row) for row in connection.execute(rows.RUNS))

    def dispose(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.dispose()


def _entries(connection: sa.Connection, wanted: Sequence[sa.ColumnElement[bool]]) -> tuple[Entry, ...]:
    found = connection.execute(rows.ENTRIES.where(*wanted)).mappings().all()
    instances = rows.instances(connection.execute(rows.instances_of(wanted)))
    beside = rows.surcharges(connection.execute(rows.besides_of(wanted)))
    parts = rows.part_ends(connection.execute(rows.parts_of(wanted)))
    return tuple(rows.entry(row, instances, beside, parts) for row in found)


@dataclass(frozen=True)
class _Purchase:
    """The latest purchase of an entry; attempt 0 stands for none."""

    attempt: int
    is_open: bool


def _last(connection: sa.Connection, entry_id: str) -> _Purchase:
    row = connection.execute(rows.last_purchase(entry_id)).first()
    return _Purchase(row[0], row[1] is None) if row else _Purchase(0, is_open=False)


def _known(connection: sa.Connection, entry_id: str) -> _Purchase:
    last = _last(connection, entry_id)
    if not last.attempt:
        raise LedgerError(f"the ledger has no entry {entry_id}", hint=_ANOTHER)
    return last


def _instances(connection: sa.Connection, purchase: Mapping[str, object]) -> set[str]:
    return set(connection.scalars(sa.select(schema.launched.c.instance_id).filter_by(**purchase)))


def _has_run(connection: sa.Connection, table: sa.Table, run_id: str) -> bool:
    return connection.scalar(sa.select(sa.literal(1)).where(table.c.run_id == run_id)) is not None


def _refuse_senseless(spending: Spending) -> None:
    """Reject a row that billing could not process, because rows cannot be removed."""
    price = spending.node_hourly_usd
    if not _sensible(price) or spending.nodes < (0 if spending.beside else 1):
        message = f"{spending.nodes} nodes at {price} USD per hour is not a valid entry"
        raise LedgerError(f"ledger entry {spending.entry_id}: {message}", hint=_PLEASE_REPORT)
    for surcharge in spending.beside:
        if surcharge.hourly_usd is not None and not _sensible(surcharge.hourly_usd):
            message = f"{surcharge.count} {surcharge.kind} at {surcharge.hourly_usd} USD per hour is not a valid entry"
            raise LedgerError(f"ledger entry {spending.entry_id}: {message}", hint=_PLEASE_REPORT)


def _sensible(price: Decimal) -> bool:
    return price.is_finite() and price >= 0
