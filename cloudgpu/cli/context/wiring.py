"""The composition root: build the adapters that a command uses. Heavy imports happen only in here."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from cloudgpu.backends.base import Backend, Cloud, Connect, Ledger
from cloudgpu.backends.events import Emit, ProgressEvent
from cloudgpu.cli.context.registries import RegistryWiring
from cloudgpu.cli.terminal.prompts import Questions
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.clock import Clock, SystemClock
from cloudgpu.errors import UsageError
from cloudgpu.paths import Home, bundled
from cloudgpu.run.progress import RankLine
from cloudgpu.settings import Settings, Target, load
from cloudgpu.state.records import ClusterRecord, Records, RunRecord

if TYPE_CHECKING:
    from cloudgpu.app.clusters.create import Requester
    from cloudgpu.app.clusters.delete_many import TeardownOf
    from cloudgpu.app.clusters.factory import ClusterDeleter
    from cloudgpu.app.diagnostics.check import DiagnosticReport
    from cloudgpu.app.images.bake import Baking, ImageStore
    from cloudgpu.app.matrix.train import Matrices
    from cloudgpu.app.planning.catalog_refresh import CatalogRefresh
    from cloudgpu.app.planning.forecast import Forecast
    from cloudgpu.app.planning.planner import Planned
    from cloudgpu.app.planning.quota_headroom import QuotaHeadroom
    from cloudgpu.app.runs.attach import Watching
    from cloudgpu.app.runs.stages import Stages
    from cloudgpu.app.runs.train import Training
    from cloudgpu.app.storage.manage import StorageManager
    from cloudgpu.backends.aws.api_log import ApiCallLog
    from cloudgpu.backends.aws.cloud import AwsCloud
    from cloudgpu.backends.base import StorageCloud
    from cloudgpu.backends.context import CloudContext, Context
    from cloudgpu.catalog import Catalog
    from cloudgpu.cli.context.hosts import HostWiring
    from cloudgpu.cli.context.ledger import LedgerWiring
    from cloudgpu.cli.context.node_access import Reaching
    from cloudgpu.plan.plan import Plan
    from cloudgpu.rehearsal.client import Cloud as RehearsalCloud
    from cloudgpu.state.catalog_snapshots import CatalogSnapshots
    from cloudgpu.state.storage_records import StorageRecords


@dataclass(frozen=True)
class Wiring:
    """The collaborators of a command, each built on first use."""

    settings: Settings
    screen: Screen
    clock: Clock
    needs_disk: bool = True
    """Whether the command writes to the state home in any case; what only shows or deletes goes on without."""

    @cached_property
    def home(self) -> Home:
        """The state home, proven writable where the command needs that."""
        home = Home(self.settings.home)
        return home.ensure() if self.needs_disk else home

    @cached_property
    def records(self) -> Records:
        """Clusters and runs of this home."""
        return Records(self.home)

    @property
    def questions(self) -> Questions:
        """The prompts that ask the user."""
        return Questions(self.screen)

    @property
    def emit(self) -> Emit:
        """Return the receiver of progress events."""
        return self.screen.emit

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger of the settings."""
        return self.billing.opened()

    @cached_property
    def billing(self) -> "LedgerWiring":
        """The ledger beside the records of this home."""
        from cloudgpu.cli.context.ledger import LedgerWiring

        return LedgerWiring(self)

    @cached_property
    def catalog(self) -> "Catalog":
        """What this home knows of GPUs, types and prices on this command's target."""
        from cloudgpu.state.known_catalog import known_catalog

        return known_catalog(Home(self.settings.home), self.settings.target)

    def cloud(self, target: Target) -> Cloud:
        """The target; a rehearsal cloud is started when it is not running."""
        return self._aws_cloud(target)

    @property
    def overlays(self) -> "CatalogSnapshots":
        """What was read of this command's target."""
        from cloudgpu.state.catalog_snapshots import CatalogSnapshots

        return CatalogSnapshots(Home(self.settings.home), self.settings.target)

    def refreshing(self) -> "CatalogRefresh":
        """`catalog refresh` of this command's target."""
        from cloudgpu.app.planning.catalog_refresh import CatalogRefresh
        from cloudgpu.backends.aws.catalog import AwsCatalog
        from cloudgpu.catalog import load as load_catalog

        source = AwsCatalog(self._aws_cloud(self.settings.target), self.clock)
        return CatalogRefresh(source, self.overlays, load_catalog(), self.clock, self.emit)

    @property
    def quota_rooms(self) -> "QuotaHeadroom":
        """What is known of the account's quotas."""
        from cloudgpu.app.planning.quota_headroom import QuotaHeadroom

        return QuotaHeadroom(Home(self.settings.home), self.clock)

    def checkup(self, *, storage: bool) -> "DiagnosticReport":
        """Everything that a run on this command's target will need, and with `storage` what `storage` needs."""
        from cloudgpu.app.diagnostics import local_checks
        from cloudgpu.app.diagnostics.doctor import examine
        from cloudgpu.aws.iam.permissions import GRANTS
        from cloudgpu.aws.iam.session_permissions import SESSION_GRANTS
        from cloudgpu.aws.iam.storage_permissions import STORAGE_GRANTS

        settings = self.settings
        further = (*(STORAGE_GRANTS if storage else ()), *(SESSION_GRANTS if settings.reach == "ssm" else ()))
        return examine(
            target=settings.target,
            region=settings.region,
            account=lambda: self._aws_cloud(settings.target).examined(),
            grants=(*GRANTS, *further),
            machine=local_checks.of(settings, Home(settings.home)),
        )

    def _aws_cloud(self, target: Target) -> "AwsCloud":
        from cloudgpu.backends.aws.cloud import connect_aws, connect_rehearsal

        if target == "ssh":
            message = "self-managed hosts are not a cloud, so they have no such resources"
            raise UsageError(
                message, hint="use --on aws or --on rehearsal, or manage your own hosts with `cloudgpu hosts`"
            )
        if target == "aws":
            return connect_aws(self.settings, environ(), self.clock, self.calls)
        return connect_rehearsal(self.settings, self.home, environ(), self.clock, self.calls)

    def rehearsal(self) -> "RehearsalCloud":
        """This home's rehearsal cloud, started when it does not run."""
        from cloudgpu.backends.aws.cloud import start_rehearsal

        return start_rehearsal(self.settings, self.home, self.clock)

    @cached_property
    def calls(self) -> "ApiCallLog":
        """Where AWS calls are noted: nowhere, unless `--debug`."""
        from cloudgpu.backends.aws.api_log import ApiCallLog

        return ApiCallLog(self.home.debug_log if self.settings.debug else None, self.clock, required=self.needs_disk)

    @cached_property
    def requester(self) -> "Requester":
        """Who buys, with the public half of the key that nodes are reached with."""
        from cloudgpu.app.clusters.create import Requester
        from cloudgpu.app.clusters.existing_resources import for_clusters
        from cloudgpu.ssh.keys import ensure_key

        settings = self.settings
        if settings.target != "ssh":
            self.reaching.check()
        return Requester(settings.owner, settings.team, ensure_key(settings.ssh_key).line, for_clusters(settings))

    @property
    def connect(self) -> Connect:
        """How nodes are reached."""
        return self.reaching.connect

    @cached_property
    def reaching(self) -> "Reaching":
        """How nodes are reached, in detail."""
        from cloudgpu.cli.context.node_access import Reaching

        def backend(record: ClusterRecord) -> Backend:
            return self.hosts.backend if record.target == "ssh" else self.cloud(as_target(record.target))

        context_for = self.cloud_cleanup_context
        clouds = (self._aws_cloud, backend)
        return Reaching(self.settings, self.clock, self.records, *clouds, context_for, self.screen, environ())

    @cached_property
    def hosts(self) -> "HostWiring":
        """What stands behind `--on ssh`."""
        from cloudgpu.cli.context.hosts import HostWiring

        return HostWiring(self)

    def context(self, target: Target) -> "Context":
        """Return the context for use cases that run on any target."""
        self.billing.warn_of_gaps()
        return self.hosts.context(self.ledger) if target == "ssh" else self.cloud_context(self.cloud(target))

    def cloud_context(self, cloud: Cloud) -> "CloudContext":
        """Return the context for use cases that need a cloud."""
        from cloudgpu.backends.context import CloudContext

        return CloudContext(cloud, self.ledger, self.records, self.home, self.clock, self.settings.owner, self.emit)

    def training(self, target: Target) -> "Training":
        """`train` on one target."""
        from cloudgpu.app.runs.train import Training

        return Training(self.context(target), self.requester, self.connect, self.registries.logins)

    @cached_property
    def registries(self) -> RegistryWiring:
        """What asks the registries of containers."""
        return RegistryWiring(lambda region: self._aws_cloud("aws").clients(region), self.clock, environ())

    def matrices(self, target: Target) -> "Matrices":
        """`train --matrix` on one target."""
        from cloudgpu.app.matrix.train import Matrices

        return Matrices(self.context(target), self.training(target), self.requester, self.connect)

    def watching(self, record: RunRecord, *, only_rank: int | None = None) -> "Watching":
        """`logs -f`, `attach` and `cancel` of one run, on the target it runs on."""
        from cloudgpu.app.runs.attach import Watching

        def emit(what: ProgressEvent) -> None:
            if only_rank is None or not isinstance(what, RankLine) or what.rank == only_rank:
                self.emit(what)

        return Watching(replace(self.context(as_target(record.target)), emit=emit), self.connect)

    def images(self, target: Target) -> "ImageStore":
        """The machine images of a target."""
        from cloudgpu.backends.aws.images import AwsImages

        return AwsImages(self._aws_cloud(target), self.clock)

    def baking(self, target: Target, stages: "Stages") -> "Baking":
        """`image bake` on one target."""
        from cloudgpu.app.images.bake import Baking

        return Baking(self.cloud_context(self.cloud(target)), self.requester, self.connect, self.images(target), stages)

    def teardown(self, cluster: str) -> "ClusterDeleter":
        """`down` of one cluster, on the target it was made on."""
        from cloudgpu.app.clusters.factory import cluster_deleter

        known = self.records.target(cluster)
        return cluster_deleter(self.cleanup_context(as_target(known) if known else self.settings.target))

    def cleanup_context(self, target: Target) -> "Context":
        """Return the context for deletions: an unusable ledger must not keep nodes running."""
        if target == "ssh":
            return self.hosts.context(self.billing.lenient())
        return self.cloud_cleanup_context(target)

    def cloud_cleanup_context(self, target: Target) -> "CloudContext":
        """Return the deletion context for a cloud target."""
        from cloudgpu.backends.context import CloudContext

        cloud, ledger = self._aws_cloud(target).for_deletion(), self.billing.lenient()
        return CloudContext(cloud, ledger, self.records, self.home, self.clock, self.settings.owner, self.emit)

    @property
    def teardowns(self) -> "TeardownOf":
        """`down` of several clusters at once: one cloud a target, whichever thread comes first."""
        from cloudgpu.app.clusters.factory import cluster_deleter

        contexts: dict[Target, Context] = {}
        lock = Lock()

        def teardown(cluster: str, emit: Emit) -> "ClusterDeleter":
            known = self.records.target(cluster)
            target = as_target(known) if known else self.settings.target
            with lock:
                if target not in contexts:
                    contexts[target] = self.cleanup_context(target)
            return cluster_deleter(replace(contexts[target], emit=emit))

        return teardown

    @property
    def storage_records(self) -> "StorageRecords":
        """The storage of this home."""
        from cloudgpu.state.storage_records import StorageRecords

        return StorageRecords(self.home)

    def storage_cloud(self, target: Target) -> "StorageCloud":
        """The target, as `storage` sees it."""
        return self._aws_cloud(target).storage()

    def storage(self, target: Target) -> "StorageManager":
        """`storage create` and `storage delete` on one target."""
        from cloudgpu.app.storage.context import StorageContext
        from cloudgpu.app.storage.manage import StorageManager

        cloud, settings = self.storage_cloud(target), self.settings
        context = StorageContext(
            cloud,
            self.storage_records,
            self.home,
            self.clock,
            settings.owner,
            settings.team,
            self.screen.emit,
            self.billing.lenient(),
        )
        return StorageManager(context)

    def storage_target(self, name: str) -> Target:
        """The target that a piece of storage was made on; the settings' where no record says so."""
        known = next((one.target for one in self.storage_records.all() if one.name == name), "")
        return as_target(known) if known else self.settings.target

    @property
    def named_for_storage(self) -> dict[str, str]:
        """What the settings name instead of having it made, under the names of the storage program."""
        from cloudgpu.app.clusters.existing_resources import for_storage

        return for_storage(self.settings)

    def only_cluster(self) -> str:
        """Return the only running cluster, or an empty string if there is none.

        Raises:
            UsageError: There are several.
        """
        from cloudgpu.cli.context.plans import only_cluster

        return only_cluster(self)

    def find_reusable_cluster(self, plan: "Plan") -> str:
        """The cluster that a `train` of this plan uses without being told; empty when it makes one of its own."""
        from cloudgpu.cli.context.plans import find_reusable_cluster

        return find_reusable_cluster(self, plan)

    def planned(self, recipe: str, sets: Sequence[str], *, offline: bool, all_regions: bool = False) -> "Planned":
        """The plan of a recipe on this command's target."""
        from cloudgpu.cli.context.plans import planned

        return planned(self, recipe, sets, offline=offline, all_regions=all_regions)

    def forecast(self, plan: "Plan") -> "tuple[Forecast, ...]":
        """Exactly what a plan would make at its first candidate; nothing is changed, not even a key made."""
        from cloudgpu.cli.context.plans import forecast

        return forecast(self, plan)


_debug = False


def set_debug() -> None:
    """Remember `--debug`, which is parsed before the command, until the command is wired."""
    global _debug  # noqa: PLW0603
    _debug = True


def wire(*, json: bool = False, quits: bool = False, needs_disk: bool = True, **flags: str | None) -> Wiring:
    """Everything for one command; `flags` are settings given on its command line.

    `quits`: the command only shows things, so it may end when nobody reads them any more. `needs_disk`: as in `Wiring`.

    Raises:
        UsageError: A setting does not make sense.
    """
    settings = load(flags=flags | ({"debug": "true"} if _debug else {}), environ=os.environ, cwd=Path.cwd())
    return Wiring(settings, Screen(json_mode=json, verbose=settings.debug, quits=quits), SystemClock(), needs_disk)


def recipe_roots() -> tuple[Path, ...]:
    """Return the folders searched for recipe names: the current one first, then the shipped recipes."""
    return (Path.cwd() / "recipes", bundled("recipes"))


def environ() -> dict[str, str]:
    """The caller's environment, for the values of a recipe's secrets and for the programs that an engine runs."""
    return dict(os.environ)


def as_target(text: str) -> Target:
    """Return a record's target, checked."""
    return "aws" if text == "aws" else "ssh" if text == "ssh" else "rehearsal"
