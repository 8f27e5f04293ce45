"""Connect to all nodes of an inventory while they boot, through jump hosts or Session Manager if needed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from cloudgpu.backends.events import Emit
from cloudgpu.clock import Clock
from cloudgpu.launch.inventory import Node
from cloudgpu.run.progress import Note
from cloudgpu.ssh.base import Host
from cloudgpu.ssh.bastion import bastion
from cloudgpu.ssh.connection import SshHost
from cloudgpu.ssh.fanout import all_or_raise, connect_all, wait_for_all
from cloudgpu.ssh.session import KeepaliveLimits
from cloudgpu.ssh.tcp_connector import CarryingCommand, ProgramCarrier, TcpConnector

_BASTION_S = 15.0


class NodeCarriers:
    """Connectors for nodes that the caller cannot reach directly. Connections to jump hosts are shared."""

    def __init__(
        self, key: Path, clock: Clock, known_hosts: Sequence[Path], session: Callable[[Node], CarryingCommand]
    ) -> None:
        self._key, self._clock, self._known_hosts, self._session = key, clock, known_hosts, session
        self._bastions: dict[tuple[str, tuple[str, ...], str], SshHost] = {}
        self._lock = Lock()

    def carrier(self, node: Node) -> TcpConnector | None:
        """Return the connector for a node, or None if the caller connects directly.

        Raises:
            HostKeyError: The host key of the jump host is unknown.
        """
        if node.reach == "ssm":
            return ProgramCarrier(lambda: self._session(node))
        return self.gate(node) if node.bastion else None

    def session(self, node: Node) -> CarryingCommand:
        """Start a Session Manager session to a node, and return the proxy command for SSH.

        Raises:
            CloudError: The cloud rejected the request.
        """
        return self._session(node)

    def gate(self, node: Node) -> SshHost:
        """Return the connection to a node's jump host, which is opened on first use.

        Raises:
            HostKeyError: The host key of the jump host is unknown.
        """
        return self._connected(node.bastion, node.bastion_keys, node.key)

    def bastion(self, address: str) -> SshHost:
        """Return the connection to the jump host at this address, which is opened on first use.

        Raises:
            HostKeyError: The host key of the jump host is unknown.
        """
        return self._connected(address)

    def _connected(self, address: str, pinned: tuple[str, ...] = (), key: str = "") -> SshHost:
        with self._lock:
            cache_key = (address, pinned, key)
            if cache_key not in self._bastions:
                host = bastion(address, self._known_hosts, pinned, key)
                self._bastions[cache_key] = SshHost(
                    host, self._key, clock=self._clock, timeout_s=_BASTION_S, via=None, keepalive=KeepaliveLimits()
                )
            return self._bastions[cache_key]


@dataclass(frozen=True)
class NodeConnections:
    """SSH connections to nodes.

    Attributes:
        boot_s: Seconds to wait for nodes that are still booting. Self-managed hosts are not waited for.
        check: Checks, before nodes are launched, that they will be reachable.
    """

    key: Path
    clock: Clock
    boot_s: float
    carriers: NodeCarriers
    check: Callable[[], None] = lambda: None

    def connect(self, nodes: Sequence[Node], emit: Emit) -> list[Host]:
        """Connect to all nodes.

        Raises:
            ConnectError: A node is unreachable.
            HostKeyError: A host key does not match.
        """
        emit(Note(f"connecting to {len(nodes)} nodes"))
        carrier = self.carriers.carrier
        if all(node.own for node in nodes):
            return list(all_or_raise(connect_all(nodes, self.key, clock=self.clock, carrier=carrier)).values())
        outcomes = wait_for_all(nodes, self.key, clock=self.clock, deadline_s=self.boot_s, carrier=carrier)
        return list(all_or_raise(outcomes).values())
