"""The part of the composition that works on hosts of one's own."""

import getpass
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cloudgpu.backends.base import Backend, Ledger
from cloudgpu.errors import UsageError
from cloudgpu.settings import Target

if TYPE_CHECKING:
    from cloudgpu.backends.hosts.backend import HostsBackend
    from cloudgpu.backends.hosts.context import HostsContext
    from cloudgpu.cli.context.wiring import Wiring
    from cloudgpu.errors import CloudGpuError
    from cloudgpu.hosts.host import HostsFile
    from cloudgpu.launch.inventory import Node
    from cloudgpu.ssh.base import Host
    from cloudgpu.ssh.host_key import ShownKey

_ANSWER_S = 10.0
"""A host of one's own is up, or it is not: nobody waits for it to boot."""


@dataclass(frozen=True)
class HostWiring:
    """What stands behind `--on ssh`, built when first asked for."""

    wiring: "Wiring"

    @cached_property
    def file(self) -> "HostsFile":
        """The inventory of the settings.

        Raises:
            HostsFileError: There is none, or something in it is wrong.
        """
        from cloudgpu.catalog import load as load_catalog
        from cloudgpu.hosts.loading import load

        return load(self.wiring.settings.hosts, user=getpass.getuser(), catalog=load_catalog())

    @cached_property
    def backend(self) -> "HostsBackend":
        """The hosts, as this home reaches them."""
        from cloudgpu.backends.hosts.backend import HostsBackend

        wiring = self.wiring
        return HostsBackend(
            wiring.home,
            wiring.records,
            lambda: self.file,
            self.connect_all,
            self.known_hosts,
            self._shown_key,
            self._objects_of,
        )

    @property
    def known_hosts(self) -> tuple[Path, ...]:
        """Where the caller's OpenSSH keeps host keys."""
        from cloudgpu.cli.context.node_access import known_hosts

        return known_hosts()

    def connect_all(self, nodes: "Sequence[Node]") -> "Mapping[int, Host | CloudGpuError]":
        """Connect to each by itself."""
        from cloudgpu.ssh.fanout import connect_all

        wiring = self.wiring
        carrier = wiring.reaching.ways.carrier
        return connect_all(nodes, wiring.settings.ssh_key, clock=wiring.clock, timeout_s=_ANSWER_S, carrier=carrier)

    def context(self, ledger: Ledger) -> "HostsContext":
        """Where a use case works."""
        from cloudgpu.backends.hosts.context import HostsContext

        wiring = self.wiring
        return HostsContext(
            self.backend, ledger, wiring.records, wiring.home, wiring.clock, wiring.settings.owner, wiring.emit
        )

    def _shown_key(self, node: "Node") -> "ShownKey":
        from cloudgpu.ssh.host_key import shown_key

        return shown_key(node, self.wiring.reaching.ways.carrier(node), timeout_s=_ANSWER_S)

    def _objects_of(self) -> Backend:
        return self.wiring.cloud("aws")


def refuse_on_hosts(target: Target, what: str) -> None:
    """Say no to what is about things that are bought.

    Raises:
        UsageError: The target is hosts of one's own.
    """
    if target == "ssh":
        message = f"{what}: about what is bought, and on hosts of your own nothing is"
        raise UsageError(message, hint="--on aws or --on rehearsal; docs/reference/hosts.md says what only AWS has")
