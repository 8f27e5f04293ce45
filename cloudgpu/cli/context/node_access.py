"""The part of the composition root for SSH access to nodes: direct, through a jump host, or through Session Manager."""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cloudgpu.backends.base import Backend, Connect
from cloudgpu.backends.events import ProgressEvent
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.clock import Clock
from cloudgpu.errors import CloudGpuError
from cloudgpu.paths import Home
from cloudgpu.run.progress import Note
from cloudgpu.settings import Settings, Target
from cloudgpu.state.cluster_and_run_records import ClusterRecord, RecordStore

if TYPE_CHECKING:
    from cloudgpu.app.access.node_connections import NodeCarriers
    from cloudgpu.app.access.session_manager import SessionManager
    from cloudgpu.app.access.ssh import NodeLogin
    from cloudgpu.app.clusters.status import ClusterStatus
    from cloudgpu.backends.aws.cloud import AwsCloud
    from cloudgpu.backends.context import CloudContext
    from cloudgpu.launch.inventory import Node
    from cloudgpu.ssh.tcp_connector import CarryingCommand


def known_hosts() -> tuple[Path, ...]:
    """Return the files in which the caller's OpenSSH keeps host keys."""
    return (Path.home() / ".ssh" / "known_hosts", Path("/etc/ssh/ssh_known_hosts"))


@dataclass(frozen=True)
class NodeAccess:
    """SSH access to the nodes that are recorded in a state home.

    Attributes:
        cloud: Connects to a target.
        backend: Returns the backend of a cluster: its cloud, or self-managed hosts.
        context: Returns the deletion context of a target.
        environ: The caller's environment, passed to proxy commands.
    """

    settings: Settings
    clock: Clock
    records: RecordStore
    cloud: "Callable[[Target], AwsCloud]"
    backend: "Callable[[ClusterRecord], Backend]"
    context: "Callable[[Target], CloudContext]"
    screen: Screen
    environ: dict[str, str]
    _clouds: "dict[Target, AwsCloud]" = field(default_factory=dict)

    @property
    def connect(self) -> Connect:
        """The function that connects to the nodes of an inventory."""
        from cloudgpu.app.access.node_connections import connector

        return connector(self.settings.ssh_key, self.clock, float(self.settings.boot_seconds), self.ways)

    @cached_property
    def ways(self) -> "NodeCarriers":
        """The jump host or Session Manager connections to nodes that cannot be reached directly."""
        from cloudgpu.app.access.node_connections import NodeCarriers

        return NodeCarriers(
            self.settings.ssh_key, self.clock, known_hosts(), lambda node: self._sessions(node).command(node)
        )

    def check(self) -> None:
        """Check that the nodes will be reachable, before any are launched.

        Raises:
            HostKeyError: The host key of the jump host is unknown.
            UsageError: The Session Manager plugin is not installed.
        """
        from cloudgpu.app.access.session_manager import session_plugin

        settings = self.settings
        if settings.bastion:
            self.ways.bastion(settings.bastion)
        if settings.reach == "ssm" and (settings.target == "aws" or settings.session_manager_plugin):
            session_plugin(settings.session_manager_plugin)

    @property
    def node_login(self) -> "NodeLogin":
        """The collaborators for logging in to a node."""
        from cloudgpu.app.access.ssh import NodeLogin

        return NodeLogin(self.settings.ssh_key, self.clock, self.ways, self._carrying_line, self.authorize_caller)

    def authorize_caller(self, record: ClusterRecord) -> None:
        """Authorize SSH from the caller's address. Notes are printed to stderr, because stdout is for data."""
        from cloudgpu.app.clusters.ssh_access import authorize_ssh_if_possible

        def emit(event: ProgressEvent) -> None:
            if isinstance(event, Note):
                self.screen.remark(event.text)

        if record.target == "ssh":
            return
        target: Target = "aws" if record.target == "aws" else "rehearsal"
        authorize_ssh_if_possible(replace(self.context(target), emit=emit), record)

    def refreshed(self, clusters: "Sequence[ClusterStatus]") -> "tuple[ClusterStatus, ...]":
        """Query the state of each cluster's nodes, and authorize SSH from this machine to running clusters."""
        return tuple(self._refreshed(cluster) for cluster in clusters)

    def _refreshed(self, cluster: "ClusterStatus") -> "ClusterStatus":
        from cloudgpu.app.clusters.status import refresh

        if cluster.record.state == "damaged":
            return cluster
        try:
            refreshed = refresh(cluster, self.backend(cluster.record), self.records, self.clock.now())
            if not refreshed.problem:
                self._bill(refreshed.record)
            if refreshed.state == "up":
                self.authorize_caller(refreshed.record)
        except CloudGpuError as err:
            # A failure for one cluster must not prevent querying the other clusters.
            return replace(cluster, state="unknown", problem=err.message)
        return refreshed

    def _bill(self, record: ClusterRecord) -> None:
        """Update the ledger from the cloud: restore missing rows, and record the end of terminated nodes."""
        from cloudgpu.app.clusters.ledger_closing import record_node_ends
        from cloudgpu.backends.missing_rows import rows_of
        from cloudgpu.backends.row_restoration import restore_missing_rows

        if record.target == "ssh" or not record.instance_ids:
            return
        context = self.context("aws" if record.target == "aws" else "rehearsal")
        with suppress(CloudGpuError):  # the state of the nodes is still shown if the ledger fails
            restore_missing_rows(context, record)
            record_node_ends(context, rows_of(context.ledger, record.name, record.token))

    def proxy_command(self, cluster: str, index: int) -> "CarryingCommand":
        """Return the proxy command that connects SSH to a node through Session Manager."""
        from cloudgpu.app.access.ssh import find_cluster_record, node_by_index
        from cloudgpu.state.inventories import stored_inventory

        record = find_cluster_record(self.records, cluster)
        node = node_by_index(stored_inventory(Home(self.settings.home), record).nodes, record, index)
        return self._sessions(node).command(node)

    def _carrying_line(self, cluster: str, index: int) -> list[str]:
        """Return the ProxyCommand for OpenSSH. It sets CLOUDGPU_HOME: OpenSSH may run in another environment."""
        home = f"CLOUDGPU_HOME={self.settings.home}"
        return ["env", home, sys.executable, "-m", "cloudgpu", "ssh", cluster, "--node", str(index), "--carry"]

    def _sessions(self, node: "Node") -> "SessionManager":
        from cloudgpu.app.access.session_manager import SessionManager, session_plugin

        target: Target = "rehearsal" if node.simulated else "aws"
        if target not in self._clouds:
            self._clouds[target] = self.cloud(target)
        cloud, settings = self._clouds[target], self.settings
        configured = settings.session_manager_plugin
        plugin = session_plugin(configured) if configured or not cloud.session_plugin else cloud.session_plugin
        return SessionManager(lambda peer: cloud.clients_at(peer.zone), plugin, settings.aws_profile, self.environ)
