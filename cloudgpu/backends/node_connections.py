"""Connect to all nodes of an inventory while they boot, through jump hosts or Session Manager if needed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from cloudgpu.clock import Clock
from cloudgpu.errors import CloudGpuError, ConnectError
from cloudgpu.launch.inventory import ALIVE_STATES, Node
from cloudgpu.run.progress import Activity, Emit, Note
from cloudgpu.ssh.base import Host
from cloudgpu.ssh.connection import SshHost
from cloudgpu.ssh.fanout import TerminatedNodeError, all_or_raise, connect_all, wait_for_all
from cloudgpu.ssh.forwarding import CarryingCommand, ProgramCarrier, TcpConnector, bastion
from cloudgpu.ssh.session import KeepaliveLimits
from cloudgpu.text import plural

_BASTION_S = 15.0
_STATES_S = 15.0
"""Seconds between two lookups of the states of nodes that do not respond."""
_WAITING = "waiting for SSH"

InstanceStates = Callable[[Sequence[Node]], Mapping[str, str]]
"""Returns the state of each node's instance by instance ID. May raise a `CloudGpuError`."""


def no_states(_nodes: Sequence[Node]) -> Mapping[str, str]:
    """Return no states, for nodes that cannot be looked up."""
    return {}


class NodeCarriers:
    """Connectors for nodes that the caller cannot reach directly. Connections to jump hosts are shared."""

    def __init__(
        self, key: Path, clock: Clock, known_hosts: Sequence[Path], session: Callable[[Node], CarryingCommand]
    ) -> None:
        self._key, self._clock, self._known_hosts, self._session = key, clock, known_hosts, session
        self._bastions: dict[tuple[str, tuple[str, ...], str], SshHost] = {}
        self._lock = Lock()

    def carrier(self, node: Node) -> TcpConnector | None:
        """Return the connector for a node, or None if the caller connects directly."""
        if node.reach == "ssm":
            return ProgramCarrier(lambda: self._session(node))
        return self.gate(node) if node.bastion else None

    def session(self, node: Node) -> CarryingCommand:
        """Start a Session Manager session to a node, and return the proxy command for SSH."""
        return self._session(node)

    def gate(self, node: Node) -> SshHost:
        """Return the connection to a node's jump host, which is opened on first use."""
        return self._connected(node.bastion, node.bastion_keys, node.key)

    def bastion(self, address: str) -> SshHost:
        """Return the connection to the jump host at this address, which is opened on first use."""
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


class TerminationCheck:
    """Looks up the states of nodes that do not respond. Safe to use from several threads.

    All nodes are looked up with one request at a time, however many of them do not respond.
    """

    def __init__(self, nodes: Sequence[Node], states: InstanceStates, clock: Clock) -> None:
        self._nodes, self._states, self._clock = nodes, states, clock
        self._known: Mapping[str, str] = {}
        self._looked_up_at = clock.monotonic()
        self._lock = Lock()

    def __call__(self, node: Node, failure: ConnectError) -> None:
        """End the wait for a node whose instance no longer runs. An unknown state does not end it."""
        state = self._current().get(node.instance_id, "")
        if state and state not in ALIVE_STATES:
            message = f"node {node.index} ({node.instance_id}) is {state}, so it cannot respond over SSH"
            hint = "look at the cluster: `cloudgpu status --refresh`"
            raise TerminatedNodeError(message, hint=hint) from failure

    def _current(self) -> Mapping[str, str]:
        with self._lock:
            now = self._clock.monotonic()
            if now - self._looked_up_at >= _STATES_S:
                self._looked_up_at = now
                try:
                    self._known = self._states(self._nodes)
                except CloudGpuError:
                    self._known = {}
            return self._known


@dataclass(frozen=True)
class NodeConnections:
    """SSH connections to nodes.

    Attributes:
        boot_s: Seconds to wait for nodes that are still booting. Does not apply to self-managed hosts.
        check: Function that checks, before nodes are launched, that they will be reachable.
        states: Function that looks up whether nodes that do not respond still run.
    """

    key: Path
    clock: Clock
    boot_s: float
    carriers: NodeCarriers
    check: Callable[[], None] = lambda: None
    states: InstanceStates = no_states

    def connect(self, nodes: Sequence[Node], emit: Emit) -> list[Host]:
        """Connect to all nodes."""
        emit(Note(f"connecting to {plural(len(nodes), 'node')}", detail=True))
        carrier = self.carriers.carrier
        if all(node.own for node in nodes):
            return list(all_or_raise(connect_all(nodes, self.key, clock=self.clock, carrier=carrier)).values())
        require_running = TerminationCheck(nodes, self.states, self.clock)

        def check(node: Node, failure: ConnectError) -> None:
            emit(Activity(_WAITING, node.index, limit_s=self.boot_s, last=failure.message))
            require_running(node, failure)

        def came(host: Host) -> None:
            emit(Activity(_WAITING, host.node.index, finished=True))

        try:
            outcomes = wait_for_all(
                nodes, self.key, clock=self.clock, deadline_s=self.boot_s, came=came, carrier=carrier, check=check
            )
        finally:
            for node in nodes:
                emit(Activity(_WAITING, node.index, finished=True))
        return list(all_or_raise(outcomes).values())
