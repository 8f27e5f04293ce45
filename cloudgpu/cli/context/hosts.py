"""The part of the composition root for self-managed hosts."""

import getpass
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cloudgpu.backends.base import Backend, CostLedger
from cloudgpu.cli.context.local import LocalContext
from cloudgpu.errors import UsageError
from cloudgpu.settings import Target

if TYPE_CHECKING:
    from cloudgpu.backends.hosts.backend import HostsBackend
    from cloudgpu.backends.hosts.context import HostsContext
    from cloudgpu.errors import CloudGpuError
    from cloudgpu.hosts.host import HostsFile
    from cloudgpu.launch.inventory import Node
    from cloudgpu.ssh.base import Host
    from cloudgpu.ssh.host_key import ShownKey
    from cloudgpu.ssh.tcp_connector import TcpConnector

_ANSWER_S = 10.0
"""Connection timeout in seconds. It is short because, unlike a new instance, a self-managed host is already booted."""


@dataclass(frozen=True)
class HostWiring:
    """The collaborators of `--on ssh`, each built on first use.

    Attributes:
        carrier: Returns the TCP connector for a node, or None for a direct connection.
        aws: Connects to AWS, to use the S3 buckets of a recipe.
    """

    local: LocalContext
    carrier: "Callable[[Node], TcpConnector | None]"
    aws: Callable[[], Backend]

    @cached_property
    def file(self) -> "HostsFile":
        """The configured inventory.

        Raises:
            HostsFileError: The inventory does not exist or is invalid.
        """
        from cloudgpu.catalog import load as load_catalog
        from cloudgpu.hosts.loading import load

        return load(self.local.settings.hosts, user=getpass.getuser(), catalog=load_catalog())

    @cached_property
    def backend(self) -> "HostsBackend":
        """The backend for the hosts of the inventory."""
        from cloudgpu.backends.hosts.backend import HostsBackend

        return HostsBackend(
            self.local.home,
            self.local.records,
            lambda: self.file,
            self.connect_all,
            self.known_hosts,
            self._shown_key,
            self.aws,
        )

    @property
    def known_hosts(self) -> tuple[Path, ...]:
        """The files in which the caller's OpenSSH keeps host keys."""
        from cloudgpu.cli.context.node_access import known_hosts

        return known_hosts()

    def connect_all(self, nodes: "Sequence[Node]") -> "Mapping[int, Host | CloudGpuError]":
        """Connect to every node and return a connection or an error for each node."""
        from cloudgpu.ssh.fanout import connect_all

        local = self.local
        return connect_all(nodes, local.settings.ssh_key, clock=local.clock, timeout_s=_ANSWER_S, carrier=self.carrier)

    def context(self, ledger: CostLedger) -> "HostsContext":
        """Return the context for use cases on self-managed hosts."""
        from cloudgpu.backends.hosts.context import HostsContext

        local = self.local
        return HostsContext(
            self.backend, ledger, local.records, local.home, local.clock, local.settings.owner, local.emit
        )

    def _shown_key(self, node: "Node") -> "ShownKey":
        from cloudgpu.ssh.host_key import shown_key

        return shown_key(node, self.carrier(node), timeout_s=_ANSWER_S)


def refuse_on_hosts(target: Target, feature: str) -> None:
    """Reject a feature that requires a cloud.

    Raises:
        UsageError: The target is self-managed hosts.
    """
    if target == "ssh":
        message = f"{feature}: not available for self-managed hosts, because no cloud instances are launched"
        raise UsageError(message, hint="use --on aws or --on rehearsal; see docs/reference/hosts.md")
