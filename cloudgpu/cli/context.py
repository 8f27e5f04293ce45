"""The composition root: the settings, state, ledger, clock, events and backends of one command."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from cloudgpu.backends.api_log import ApiCallLog
from cloudgpu.backends.base import Context
from cloudgpu.backends.billing.lenient_ledger import LenientLedger
from cloudgpu.backends.billing.missing_rows import find_gaps
from cloudgpu.backends.environment import BackendEnvironment, caller_environ, user_known_hosts
from cloudgpu.backends.factory import BUCKET_TARGET, open_backend
from cloudgpu.cli.open_resources import open_resources
from cloudgpu.cli.terminal.prompts import Prompts
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.clock import Clock, SystemClock
from cloudgpu.errors import CloudGpuError, UsageError
from cloudgpu.ledger.sqlite_report import sqlite_entries, sqlite_report
from cloudgpu.paths import Home
from cloudgpu.settings import Settings, load
from cloudgpu.state.catalog_snapshots import CatalogSnapshots
from cloudgpu.state.cluster_and_run_records import RecordStore
from cloudgpu.state.known_catalog import known_catalog
from cloudgpu.state.storage_records import StorageRecords
from cloudgpu.targets import Target, as_target

if TYPE_CHECKING:
    from datetime import datetime

    from cloudgpu.backends.base import Backend
    from cloudgpu.backends.billing.cost_ledger import CostLedger
    from cloudgpu.backends.billing.missing_rows import MissingRows
    from cloudgpu.backends.events import Emit
    from cloudgpu.catalog import Catalog
    from cloudgpu.ledger.report import By, CostReport

_LEDGER = "cloudgpu.ledger.store"


@dataclass(frozen=True)
class CliContext:
    """Everything that a command works with. Files and connections are opened on first use.

    Attributes:
        needs_disk: Whether the command must be able to write to the state home. Commands that only show or delete
            resources also work if the disk is full or read-only.
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

    @property
    def emit(self) -> Emit:
        """The function that shows a progress event."""
        return self.screen.emit

    @cached_property
    def home(self) -> Home:
        """The state home, verified to be writable if the command must write to it."""
        home = Home(self.settings.home)
        return home.ensure() if self.needs_disk else home

    @cached_property
    def records(self) -> RecordStore:
        """The cluster and run records of the state home."""
        return RecordStore(self.home)

    @cached_property
    def storage_records(self) -> StorageRecords:
        """The storage records of the state home."""
        return StorageRecords(self.home)

    @property
    def catalog(self) -> Catalog:
        """The GPUs, instance types and prices of this command's target, from the latest catalog in the state home."""
        return known_catalog(Home(self.settings.home), self.settings.target)

    @property
    def catalog_snapshots(self) -> CatalogSnapshots:
        """The stored catalog snapshots of this command's target."""
        return CatalogSnapshots(Home(self.settings.home), self.settings.target)

    @cached_property
    def ledger(self) -> CostLedger:
        """The configured ledger.

        Raises:
            LedgerError: The ledger cannot be used.
            StateError: The command must write to the state home, but the state home is not writable.
        """
        if self.needs_disk:
            self.home.ensure()
        # SQLAlchemy is imported only by commands that use the ledger.
        opened = import_module(_LEDGER).open_ledger(self.settings.ledger_url, may_read_only=not self.needs_disk)
        ledger: CostLedger = open_resources.enter_context(opened)
        return ledger

    def cost_report(self, *, by: By, now: datetime, since: datetime | None) -> CostReport:
        """Return the cost report, without SQLAlchemy if `sqlite_report` can read the ledger.

        Raises:
            LedgerError: The ledger cannot be used.
            StateError: The command must write to the state home, but the state home is not writable.
        """
        if self.needs_disk:
            self.home.ensure()
        summarized = sqlite_report(self.settings.ledger_url, by=by, now=now, since=since)
        return summarized or self.ledger.report(by=by, now=now, since=since)

    def lenient_ledger(self) -> LenientLedger:
        """Return a wrapper that lets the command continue if the ledger fails."""
        return LenientLedger(lambda: self.ledger)

    def readable_ledger(self) -> LenientLedger:
        """Return the lenient ledger for a command that reads a few entries. Avoids SQLAlchemy if possible."""
        return LenientLedger(lambda: self.ledger, lambda token: sqlite_entries(self.settings.ledger_url, token))

    def missing_rows(self) -> tuple[MissingRows, ...]:
        """Return what costs money according to the records of the state home but has no row in the ledger.

        Raises:
            LedgerError: The ledger cannot be read.
            StateError: The records cannot be read.
        """
        return find_gaps(self.records, self.storage_records.all(), lambda: self.ledger)

    @cached_property
    def environment(self) -> BackendEnvironment:
        """What backends receive when they are opened."""
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
        """Return the backend of a target. Default: the target of the settings."""
        with self._lock:
            target = target or self.settings.target
            if target not in self._backends:
                self._backends[target] = open_backend(target, self.environment)
            return self._backends[target]

    def context(self, target: Target | None = None) -> Context:
        """Return the context of use cases on a target, after a warning for every missing ledger row."""
        with suppress(CloudGpuError):  # the ledger's own errors are reported when it is used
            for gap in self.missing_rows():
                self.screen.remark(f"warning: {gap.message}; to restore the ledger row: {gap.repair}")
        return self._context(self.backend(target), self.ledger)

    def deletion_context(self, target: Target | None = None) -> Context:
        """Return the context of deletions, which work even if the ledger or a region is unusable."""
        return self._context(self.backend(target).for_deletion(), self.lenient_ledger())

    def storage_context(self, target: Target | None = None) -> Context:
        """Return the context of operations on storage, which work even if the ledger is unusable."""
        return self._context(self.backend(target), self.lenient_ledger())

    def _context(self, backend: Backend, ledger: CostLedger) -> Context:
        return Context(backend, ledger, self.records, self.home, self.clock, self.settings.owner, self.emit)

    def deletion_context_of(self, cluster: str) -> Context:
        """Return the deletion context of a cluster's target. May be called by several threads."""
        return self.deletion_context(self.target_of(cluster))

    def target_of(self, cluster: str) -> Target:
        """Return the target of a recorded cluster, or the target of the settings if there is no record.

        Raises:
            StateError: Another version created the cluster on a target that this version does not know.
        """
        recorded = self.records.target(cluster)
        return as_target(recorded) if recorded else self.settings.target

    def only_cluster(self) -> str:
        """Return the only running cluster, or an empty string if there is none.

        Raises:
            UsageError: Several clusters are running.
        """
        names = [record.name for record in self.records.clusters()]
        if len(names) > 1:
            raise UsageError(f"several clusters are running: {', '.join(names)}", hint="specify the name of a cluster")
        return names[0] if names else ""


_debug = False


def set_debug() -> None:
    """Store the option `--debug`, which is parsed before the command."""
    global _debug  # noqa: PLW0603
    _debug = True


def command_context(
    *, json: bool = False, quits: bool = False, needs_disk: bool = True, **flags: str | None
) -> CliContext:
    """Return the context of a command.

    Args:
        json: Print one JSON document to stdout, and everything else to stderr.
        quits: The command only displays data, so it may exit when the reader of its output closes the pipe.
        needs_disk: The command must be able to write to the state home; see `CliContext`.
        flags: Settings from the command line, by name.

    Raises:
        UsageError: A setting is invalid.
    """
    settings = load(flags=flags | ({"debug": "true"} if _debug else {}), environ=os.environ, cwd=Path.cwd())
    screen = Screen(json_mode=json, verbose=settings.debug, quits=quits)
    return CliContext(settings, screen, SystemClock(), needs_disk)
