"""The part of the composition that reaches nodes: straight, through a jump host, or by Session Manager."""

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
from cloudgpu.state.records import ClusterRecord, Records

if TYPE_CHECKING:
    from cloudgpu.app.access.dial import NodeCarriers
    from cloudgpu.app.access.session_manager import Sessions
    from cloudgpu.app.access.ssh import NodeLogin
    from cloudgpu.app.clusters.status import ClusterStatus
    from cloudgpu.backends.aws.cloud import AwsCloud
    from cloudgpu.backends.context import CloudContext
    from cloudgpu.launch.inventory import Node
    from cloudgpu.ssh.carrier import CarryingCommand


def known_hosts() -> tuple[Path, ...]:
    """Where the caller's OpenSSH keeps host keys."""
    return (Path.home() / ".ssh" / "known_hosts", Path("/etc/ssh/ssh_known_hosts"))


@dataclass(frozen=True)
class NodeAccess:
    """How the nodes of a home are reached.

    Attributes:
        cloud: The target that a node belongs to.
        ground: What a cluster runs on: its cloud, or hosts of one's own.
        context: Builds the context for that target.
        environ: The caller's environment, for the programs that carry connections.
    """

    settings: Settings
    clock: Clock
    records: Records
    cloud: "Callable[[Target], AwsCloud]"
    backend: "Callable[[ClusterRecord], Backend]"
    context: "Callable[[Target], CloudContext]"
    screen: Screen
    environ: dict[str, str]
    _clouds: "dict[Target, AwsCloud]" = field(default_factory=dict)

    @property
    def connect(self) -> Connect:
        """Connects to a whole inventory."""
        from cloudgpu.app.access.dial import connector

        return connector(self.settings.ssh_key, self.clock, float(self.settings.boot_seconds), self.ways)

    @cached_property
    def ways(self) -> "NodeCarriers":
        """What leads to nodes that this machine does not reach straight."""
        from cloudgpu.app.access.dial import NodeCarriers

        return NodeCarriers(
            self.settings.ssh_key, self.clock, known_hosts(), lambda node: self._sessions(node).command(node)
        )

    def check(self) -> None:
        """Refuse what new nodes could not be reached with, before anything is bought.

        Raises:
            HostKeyError: The host key of the jump host is not known.
            UsageError: The plugin that carries sessions is not installed.
        """
        from cloudgpu.app.access.session_manager import session_plugin

        settings = self.settings
        if settings.bastion:
            self.ways.bastion(settings.bastion)
        if settings.reach == "ssm" and (settings.target == "aws" or settings.session_manager_plugin):
            session_plugin(settings.session_manager_plugin)

    @property
    def means(self) -> "NodeLogin":
        """What `ssh` logs in with."""
        from cloudgpu.app.access.ssh import NodeLogin

        return NodeLogin(self.settings.ssh_key, self.clock, self.ways, self._carrying_line, self.authorize_caller)

    def authorize_caller(self, record: ClusterRecord) -> None:
        """Open the way to this caller; what is said of it goes to standard error, which is nobody's data."""
        from cloudgpu.app.clusters.ssh_access import authorize_ssh_if_possible

        def emit(event: ProgressEvent) -> None:
            if isinstance(event, Note):
                self.screen.remark(event.text)

        if record.target == "ssh":
            return
        target: Target = "aws" if record.target == "aws" else "rehearsal"
        authorize_ssh_if_possible(replace(self.context(target), emit=emit), record)

    def refreshed(self, clusters: "Sequence[ClusterStatus]") -> "tuple[ClusterStatus, ...]":
        """The clusters with their nodes' states as the cloud tells them, those that are up open to this caller."""
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
            # What fails for one cluster leaves the others to be asked.
            return replace(cluster, state="unknown", problem=err.message)
        return refreshed

    def _bill(self, record: ClusterRecord) -> None:
        """Bring the ledger up to what the cloud says: rows that were lost, nodes that have ended themselves."""
        from cloudgpu.app.clusters.row_closing import note_ends
        from cloudgpu.backends.missing_rows import restore, rows_of

        if record.target == "ssh" or not record.instance_ids:
            return
        context = self.context("aws" if record.target == "aws" else "rehearsal")
        with suppress(CloudGpuError):  # what the cloud said is shown all the same
            restore(context, record)
            note_ends(context, rows_of(context.ledger, record.name, record.token))

    def carrying(self, cluster: str, index: int) -> "CarryingCommand":
        """The program that carries SSH to a node by Session Manager."""
        from cloudgpu.app.access.ssh import chosen, recorded
        from cloudgpu.state.inventories import stored_inventory

        record = recorded(self.records, cluster)
        node = chosen(stored_inventory(Home(self.settings.home), record).nodes, record, index)
        return self._sessions(node).command(node)

    def _carrying_line(self, cluster: str, index: int) -> list[str]:
        """The same as a command line for OpenSSH. Whoever runs it may stand elsewhere: the home is said."""
        home = f"CLOUDGPU_HOME={self.settings.home}"
        return ["env", home, sys.executable, "-m", "cloudgpu", "ssh", cluster, "--node", str(index), "--carry"]

    def _sessions(self, node: "Node") -> "Sessions":
        from cloudgpu.app.access.session_manager import Sessions, session_plugin

        target: Target = "rehearsal" if node.simulated else "aws"
        if target not in self._clouds:
            self._clouds[target] = self.cloud(target)
        cloud, settings = self._clouds[target], self.settings
        named = settings.session_manager_plugin
        plugin = session_plugin(named) if named or not cloud.session_plugin else cloud.session_plugin
        return Sessions(lambda peer: cloud.clients_at(peer.zone), plugin, settings.aws_profile, self.environ)
