"""The composition root: build the adapters that a command uses. Heavy modules are imported only inside functions."""

import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from cloudgpu.backends.base import Backend, Cloud, Connect, CostLedger
from cloudgpu.backends.events import Emit, ProgressEvent
from cloudgpu.cli.context.local import LocalContext, as_target, environ
from cloudgpu.cli.context.registries import RegistryWiring
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.clock import SystemClock
from cloudgpu.errors import UsageError
from cloudgpu.paths import Home
from cloudgpu.run.progress import RankLine
from cloudgpu.settings import Target, load
from cloudgpu.state.cluster_and_run_records import ClusterRecord, RunRecord

if TYPE_CHECKING:
    from cloudgpu.app.clusters.create import Requester
    from cloudgpu.app.clusters.delete_many import TeardownOf
    from cloudgpu.app.clusters.factory import ClusterDeleter
    from cloudgpu.app.diagnostics.check import DiagnosticReport
    from cloudgpu.app.images.bake import ImageBaker, ImageStore
    from cloudgpu.app.matrix.train import MatrixRunner
    from cloudgpu.app.planning.catalog_refresh import CatalogRefresh
    from cloudgpu.app.runs.attach import RunWatcher
    from cloudgpu.app.runs.stages import Stages
    from cloudgpu.app.runs.train import TrainingRun
    from cloudgpu.app.storage.manage import StorageManager
    from cloudgpu.backends.aws.api_log import ApiCallLog
    from cloudgpu.backends.aws.cloud import AwsCloud
    from cloudgpu.backends.base import StorageCloud
    from cloudgpu.backends.context import CloudContext, Context
    from cloudgpu.cli.context.hosts import HostWiring
    from cloudgpu.cli.context.ledger import LedgerWiring
    from cloudgpu.cli.context.node_access import NodeAccess
    from cloudgpu.launch.inventory import Node
    from cloudgpu.rehearsal.client import RehearsalClient as RehearsalCloud
    from cloudgpu.ssh.tcp_connector import TcpConnector


class Wiring(LocalContext):
    """The collaborators of a command, each built on first use."""

    @property
    def ledger(self) -> CostLedger:
        """The configured ledger."""
        return self.billing.ledger

    @cached_property
    def billing(self) -> "LedgerWiring":
        """The ledger, and the comparison of the ledger with the records of this state home."""
        from cloudgpu.cli.context.ledger import LedgerWiring

        return LedgerWiring(self)

    def cloud(self, target: Target) -> Cloud:
        """Connect to the target. For `rehearsal`, start the rehearsal cloud if it is not running."""
        return self._aws_cloud(target)

    def catalog_refresh(self) -> "CatalogRefresh":
        """Return the object that refreshes the catalog for this command's target."""
        from cloudgpu.app.planning.catalog_refresh import CatalogRefresh
        from cloudgpu.backends.aws.catalog import AwsCatalog
        from cloudgpu.catalog import load as load_catalog

        source = AwsCatalog(self._aws_cloud(self.settings.target), self.clock)
        return CatalogRefresh(source, self.catalog_snapshots, load_catalog(), self.clock, self.emit)

    def diagnose(self, *, storage: bool) -> "DiagnosticReport":
        """Check the requirements of a run on this command's target and, if `storage` is true, of `cloudgpu storage`."""
        from cloudgpu.app.diagnostics import local_checks
        from cloudgpu.app.diagnostics.doctor import run_checks
        from cloudgpu.aws.iam.permissions import GRANTS
        from cloudgpu.aws.iam.session_permissions import SESSION_GRANTS
        from cloudgpu.aws.iam.storage_permissions import STORAGE_GRANTS

        settings = self.settings
        extra_grants = (*(STORAGE_GRANTS if storage else ()), *(SESSION_GRANTS if settings.reach == "ssm" else ()))
        return run_checks(
            target=settings.target,
            region=settings.region,
            account=lambda: self._aws_cloud(settings.target).examined(),
            grants=(*GRANTS, *extra_grants),
            machine=local_checks.machine_checks(settings, Home(settings.home)),
        )

    def _aws_cloud(self, target: Target) -> "AwsCloud":
        from cloudgpu.backends.aws.cloud import connect_aws, connect_rehearsal

        if target == "ssh":
            message = "this command requires a cloud, but the target is self-managed hosts"
            raise UsageError(
                message, hint="use --on aws or --on rehearsal, or manage your own hosts with `cloudgpu hosts`"
            )
        if target == "aws":
            return connect_aws(self.settings, environ(), self.clock, self.calls)
        return connect_rehearsal(self.settings, self.home, environ(), self.clock, self.calls)

    def rehearsal(self) -> "RehearsalCloud":
        """Return the client of this state home's rehearsal cloud, after starting the cloud if it is not running."""
        from cloudgpu.backends.aws.cloud import start_rehearsal

        return start_rehearsal(self.settings, self.home, self.clock)

    @cached_property
    def calls(self) -> "ApiCallLog":
        """The log of AWS calls, which is written only if `--debug` is set."""
        from cloudgpu.backends.aws.api_log import ApiCallLog

        return ApiCallLog(self.home.debug_log if self.settings.debug else None, self.clock, required=self.needs_disk)

    @cached_property
    def requester(self) -> "Requester":
        """The owner and team to bill, the public key that nodes authorize, and existing resources to use."""
        from cloudgpu.app.clusters.create import Requester
        from cloudgpu.app.clusters.existing_resources import cluster_program_config
        from cloudgpu.ssh.keys import ensure_key

        settings = self.settings
        if settings.target != "ssh":
            self.node_access.check()
        return Requester(
            settings.owner, settings.team, ensure_key(settings.ssh_key).line, cluster_program_config(settings)
        )

    @property
    def connect(self) -> Connect:
        """The function that connects to the nodes of an inventory."""
        return self.node_access.connect

    @cached_property
    def node_access(self) -> "NodeAccess":
        """SSH access to nodes."""
        from cloudgpu.cli.context.node_access import NodeAccess

        def backend(record: ClusterRecord) -> Backend:
            return self.hosts.backend if record.target == "ssh" else self.cloud(as_target(record.target))

        context_for = self.cloud_cleanup_context
        clouds = (self._aws_cloud, backend)
        return NodeAccess(self.settings, self.clock, self.records, *clouds, context_for, self.screen, environ())

    @cached_property
    def hosts(self) -> "HostWiring":
        """The collaborators of `--on ssh`."""
        from cloudgpu.cli.context.hosts import HostWiring

        def carrier(node: "Node") -> "TcpConnector | None":
            return self.node_access.ways.carrier(node)

        return HostWiring(self, carrier, lambda: self.cloud("aws"))

    def context(self, target: Target) -> "Context":
        """Return the context for use cases that run on any target."""
        self.billing.warn_of_missing_rows()
        return self.hosts.context(self.ledger) if target == "ssh" else self.cloud_context(self.cloud(target))

    def cloud_context(self, cloud: Cloud) -> "CloudContext":
        """Return the context for use cases that need a cloud."""
        from cloudgpu.backends.context import CloudContext

        return CloudContext(cloud, self.ledger, self.records, self.home, self.clock, self.settings.owner, self.emit)

    def training(self, target: Target) -> "TrainingRun":
        """Return the object that trains on a target."""
        from cloudgpu.app.runs.train import TrainingRun

        return TrainingRun(self.context(target), self.requester, self.connect, self.registries.logins)

    @cached_property
    def registries(self) -> RegistryWiring:
        """The access to container registries."""
        return RegistryWiring(lambda region: self._aws_cloud("aws").clients(region), self.clock, environ())

    def matrices(self, target: Target) -> "MatrixRunner":
        """Return the object that trains matrices on a target."""
        from cloudgpu.app.matrix.train import MatrixRunner

        return MatrixRunner(self.context(target), self.training(target), self.requester, self.connect)

    def watching(self, record: RunRecord, *, only_rank: int | None = None) -> "RunWatcher":
        """Return the object that follows, attaches to and cancels runs on the target of a run.

        If `only_rank` is set, the output of other ranks is not shown.
        """
        from cloudgpu.app.runs.attach import RunWatcher

        def emit(event: ProgressEvent) -> None:
            if only_rank is None or not isinstance(event, RankLine) or event.rank == only_rank:
                self.emit(event)

        return RunWatcher(replace(self.context(as_target(record.target)), emit=emit), self.connect)

    def images(self, target: Target) -> "ImageStore":
        """Return the store of machine images of a target."""
        from cloudgpu.backends.aws.images import AwsImages

        return AwsImages(self._aws_cloud(target), self.clock)

    def image_baker(self, target: Target, stages: "Stages") -> "ImageBaker":
        """Return the object that bakes images on a target."""
        from cloudgpu.app.images.bake import ImageBaker

        return ImageBaker(
            self.cloud_context(self.cloud(target)), self.requester, self.connect, self.images(target), stages
        )

    def teardown(self, cluster: str) -> "ClusterDeleter":
        """Return the object that deletes clusters on the target of a cluster."""
        from cloudgpu.app.clusters.factory import cluster_deleter

        recorded = self.records.target(cluster)
        return cluster_deleter(self.cleanup_context(as_target(recorded) if recorded else self.settings.target))

    def cleanup_context(self, target: Target) -> "Context":
        """Return the context for deletions, which work even if the ledger is unusable."""
        if target == "ssh":
            return self.hosts.context(self.billing.lenient())
        return self.cloud_cleanup_context(target)

    def cloud_cleanup_context(self, target: Target) -> "CloudContext":
        """Return the deletion context for a cloud target."""
        from cloudgpu.backends.context import CloudContext

        cloud, ledger = self._aws_cloud(target).for_deletion(), self.billing.lenient()
        return CloudContext(cloud, ledger, self.records, self.home, self.clock, self.settings.owner, self.emit)

    @property
    def teardown_factory(self) -> "TeardownOf":
        """A factory of the use case `down` for several concurrent threads, which share one context per target."""
        from cloudgpu.app.clusters.factory import cluster_deleter

        contexts: dict[Target, Context] = {}
        lock = Lock()

        def teardown(cluster: str, emit: Emit) -> "ClusterDeleter":
            recorded = self.records.target(cluster)
            target = as_target(recorded) if recorded else self.settings.target
            with lock:
                if target not in contexts:
                    contexts[target] = self.cleanup_context(target)
            return cluster_deleter(replace(contexts[target], emit=emit))

        return teardown

    def storage_cloud(self, target: Target) -> "StorageCloud":
        """Return the storage services of a target."""
        return self._aws_cloud(target).storage()

    def storage(self, target: Target) -> "StorageManager":
        """Return the manager that creates and deletes storage on a target."""
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


_debug = False


def set_debug() -> None:
    """Store the option `--debug`, which is parsed before the command."""
    global _debug  # noqa: PLW0603
    _debug = True


def wire(*, json: bool = False, quits: bool = False, needs_disk: bool = True, **flags: str | None) -> Wiring:
    """Build the wiring of a command.

    Args:
        json: Print one JSON document to stdout, and everything else to stderr.
        quits: The command only displays data, so it may exit when the reader of its output closes the pipe.
        needs_disk: The command must be able to write to the state home; see `LocalContext`.
        flags: Settings from the command line, by name.

    Raises:
        UsageError: A setting is invalid.
    """
    settings = load(flags=flags | ({"debug": "true"} if _debug else {}), environ=os.environ, cwd=Path.cwd())
    return Wiring(settings, Screen(json_mode=json, verbose=settings.debug, quits=quits), SystemClock(), needs_disk)
