"""The composition root of a command: its settings, state, ledger, clock, events and backends."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from cloudgpu.backends.base import Context
from cloudgpu.backends.environment import ApiCallLog, BackendEnvironment, caller_environ, user_known_hosts
from cloudgpu.backends.factory import BUCKET_TARGET, open_backend
from cloudgpu.cli.command_end import add_failure_note, open_resources
from cloudgpu.cli.terminal.interruption import interruptions
from cloudgpu.cli.terminal.prompts import Prompts
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.clock import Clock, SystemClock
from cloudgpu.errors import CloudGpuError, UsageError
from cloudgpu.paths import Home
from cloudgpu.settings import Settings, load
from cloudgpu.state.catalog_snapshots import CatalogSnapshots, known_catalog
from cloudgpu.state.record_store import RecordStore
from cloudgpu.state.storage_records import StorageRecords
from cloudgpu.targets import Target, as_target, is_simulated
from cloudgpu.text import command

if TYPE_CHECKING:
    from datetime import timedelta

    from cloudgpu.backends.base import Backend
    from cloudgpu.backends.billing.cluster_billing import MissingRows
    from cloudgpu.backends.billing.cost_ledger import CostLedger, LenientLedger
    from cloudgpu.catalog import Catalog
    from cloudgpu.ledger.report import CostReport, ReportQuery
    from cloudgpu.run.progress import ProgressEvent
    from cloudgpu.state.cluster_record import ClusterRecord


@dataclass(frozen=True)
class CliContext:
    """The dependencies of a command. Files and connections are opened on first use.

    Methods import what only some commands need: the ledger's code alone takes a tenth of a short command's time.

    Attributes:
        needs_disk: If True, `home` and `ledger` raise an error unless the state home is writable. False for commands
            such as `status` and `down`, which must work even if the disk is full or read-only.
    """

    settings: Settings
    screen: Screen
    clock: Clock
    needs_disk: bool = True
    _backends: dict[Target, Backend] = field(default_factory=dict, init=False, repr=False, compare=False)
    _lock: Lock = field(default_factory=Lock, init=False, repr=False, compare=False)

    @property
    def prompts(self) -> Prompts:
        """The interface for prompting the user."""
        return Prompts(self.screen)

    @cached_property
    def home(self) -> Home:
        """The state home. If `needs_disk` is set, the directory is created and verified to be writable."""
        home = Home(self.settings.home)
        return home.ensure() if self.needs_disk else home

    @cached_property
    def records(self) -> RecordStore:
        """The cluster and run records in the state home."""
        return RecordStore(self.home)

    @cached_property
    def storage_records(self) -> StorageRecords:
        """The storage records in the state home."""
        return StorageRecords(self.home)

    @property
    def catalog(self) -> Catalog:
        """The catalog of this command's target: the bundled data, updated with the active snapshot if there is one."""
        return known_catalog(Home(self.settings.home), self.settings.target)

    @property
    def catalog_snapshots(self) -> CatalogSnapshots:
        """The stored catalog snapshots of this command's target."""
        return CatalogSnapshots(Home(self.settings.home), self.settings.target)

    @cached_property
    def ledger(self) -> CostLedger:
        """The configured ledger."""
        if self.needs_disk:
            self.home.ensure()
        from cloudgpu.ledger.store import open_ledger  # noqa: PLC0415 - imports SQLAlchemy

        return open_resources.enter_context(open_ledger(self.settings.ledger_url, may_read_only=not self.needs_disk))

    def cost_report(self, query: ReportQuery) -> CostReport:
        """Return the cost report. Imports SQLAlchemy only if `sqlite_report` cannot read the ledger."""
        if self.needs_disk:
            self.home.ensure()
        from cloudgpu.ledger.summary_queries import sqlite_report  # noqa: PLC0415 - see the class

        return sqlite_report(self.settings.ledger_url, query) or self.ledger.query(query)

    def lenient_ledger(self) -> LenientLedger:
        """Return a ledger proxy that does not interrupt a deletion if the ledger is unusable."""
        from cloudgpu.backends.billing.cost_ledger import LenientLedger  # noqa: PLC0415 - see the class

        return LenientLedger(lambda: self.ledger)

    def readable_ledger(self) -> LenientLedger:
        """Return a lenient ledger that, if possible, reads a cluster's entries without importing SQLAlchemy."""
        from cloudgpu.backends.billing.cost_ledger import LenientLedger  # noqa: PLC0415 - see the class
        from cloudgpu.ledger.summary_queries import sqlite_entries  # noqa: PLC0415 - see the class

        return LenientLedger(lambda: self.ledger, lambda token: sqlite_entries(self.settings.ledger_url, token))

    def missing_rows(self) -> tuple[MissingRows, ...]:
        """Return the recorded clusters and storage of which the ledger lacks rows."""
        from cloudgpu.backends.billing.cluster_billing import find_gaps  # noqa: PLC0415 - see the class

        return find_gaps(self.records, self.storage_records.all(), lambda: self.ledger)

    @cached_property
    def environment(self) -> BackendEnvironment:
        """The settings, records, clock and caller's environment that are passed to every backend."""
        home = Home(self.settings.home)
        log = self.home.debug_log if self.settings.debug else None
        return BackendEnvironment(
            settings=self.settings,
            home=home,
            writable_home=lambda: self.home,
            records=RecordStore(home),
            clock=self.clock,
            environ=caller_environ(),
            known_hosts=user_known_hosts(),
            calls=ApiCallLog(log, self.clock, required=self.needs_disk),
            buckets=lambda: self.backend(BUCKET_TARGET),
        )

    def backend(self, target: Target | None = None) -> Backend:
        """Return the backend of a target, opened on first use. Default: the `target` setting."""
        with self._lock:
            target = target or self.settings.target
            if is_simulated(target):
                add_failure_note("clock", self._shifted_clock)
            if target not in self._backends:
                self._backends[target] = open_backend(target, self.environment)
            return self._backends[target]

    def _shifted_clock(self) -> str:
        """Return a note about the simulated clock if it is shifted; an empty string if it is not, or unreadable."""
        from cloudgpu.rehearsal.simulated_time import clock_ahead  # noqa: PLC0415 - see the class

        with suppress(CloudGpuError):
            return shifted_clock_note(clock_ahead(Home(self.settings.home)))
        return ""

    def backend_context(self, target: Target | None = None) -> Context:
        """Print a warning for every missing ledger row, and return the context for use cases on a target."""
        with suppress(CloudGpuError):  # errors of the ledger are reported when the command uses the ledger
            for gap in self.missing_rows():
                self.screen.remark(f"warning: {gap.message}; to restore the ledger row: {gap.repair}")
        return self._context(self.backend(target), self.ledger)

    def deletion_context(self, target: Target | None = None) -> Context:
        """Return a context for deletions, which work even if the ledger is unusable or a region does not respond."""
        return self._context(self.backend(target).for_deletion(), self.lenient_ledger())

    def storage_context(self, target: Target | None = None) -> Context:
        """Return a context for storage operations. Storage can be deleted even if the ledger is unusable."""
        return self._context(self.backend(target), self.lenient_ledger())

    def _context(self, backend: Backend, ledger: CostLedger) -> Context:
        return Context(backend, ledger, self.records, self.home, self.clock, self.settings.owner, self.screen.emit)

    def deletion_context_of(self, cluster: str) -> Context:
        """Return the deletion context for a cluster's target. May be called from several threads."""
        return self.deletion_context(self.target_of(cluster))

    def authorize_caller(self, record: ClusterRecord) -> None:
        """Authorize SSH to a cluster from the caller's address. Notes go to stderr, because stdout is for data."""
        from cloudgpu.app.cluster_status import authorize_if_possible  # noqa: PLC0415 - see the class
        from cloudgpu.run.progress import Note  # noqa: PLC0415 - see the class

        def emit(event: ProgressEvent) -> None:
            if isinstance(event, Note):
                self.screen.remark(event.text)

        context = self.deletion_context(as_target(record.identity.target))
        authorize_if_possible(replace(context, emit=emit), record)

    def report_clusters_on_signal(self, *clusters: str) -> None:
        """After a signal, report these clusters and any clusters that the command has created, if still recorded."""
        from cloudgpu.app.cluster_status import StillRunning  # noqa: PLC0415 - see the class

        interruptions.tell(StillRunning(self.records, clusters).lines)

    def report_storage_on_signal(self, name: str) -> None:
        """After a signal, report whether this storage still exists."""
        from cloudgpu.app.cluster_status import storage_lines  # noqa: PLC0415 - see the class

        interruptions.tell(lambda: storage_lines(self.storage_records, name))

    def target_of(self, cluster: str) -> Target:
        """Return the target of a recorded cluster, or the `target` setting if the cluster has no record."""
        recorded = self.records.target(cluster)
        return as_target(recorded) if recorded else self.settings.target

    def only_cluster(self) -> str:
        """Return the name of the only recorded cluster, or an empty string if none is recorded."""
        names = [record.name for record in self.records.clusters()]
        if len(names) > 1:
            raise UsageError(f"there are several clusters: {', '.join(names)}", hint="specify a cluster name")
        return names[0] if names else ""


def shifted_clock_note(ahead: timedelta) -> str:
    """Return how far the simulated clock is ahead or behind and how to reset it; empty if it is not shifted."""
    from cloudgpu.recipe.field_types import DurationS  # noqa: PLC0415 - imports pydantic

    seconds = round(ahead.total_seconds())
    if not seconds:
        return ""
    by, back = str(DurationS(abs(seconds))), ("--back",) if seconds > 0 else ()
    reset = command("cloudgpu", "rehearsal", "advance", by, *back)
    return f"the simulated clock is {by} {'ahead' if seconds > 0 else 'behind'}; to reset it: {reset}"


_debug = False


def set_debug() -> None:
    """Remember that `--debug` was given. The option precedes the command, so no context exists yet."""
    global _debug  # noqa: PLW0603
    _debug = True


def command_context(
    *, json: bool = False, verbose: bool = False, quits: bool = False, needs_disk: bool = True, **flags: str | None
) -> CliContext:
    """Return the context of a command.

    Args:
        json: Print one JSON document to stdout, and everything else to stderr.
        verbose: Show every progress message on a terminal, too.
        quits: Exit after a failed write, for example because the reader closed the pipe. Only for commands that just
            display data.
        needs_disk: Require a writable state home; see `CliContext`.
        flags: Settings from the command line, by name.
    """
    settings = load(flags=flags | ({"debug": "true"} if _debug else {}), environ=os.environ, cwd=Path.cwd())
    screen = Screen(json_mode=json, verbose=verbose or settings.debug, quits=quits)
    return CliContext(settings, screen, SystemClock(), needs_disk)
