"""Connecting to a whole inventory while it boots, whatever stands between it and the caller."""

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

from cloudgpu.backends.base import Connect
from cloudgpu.backends.events import Emit
from cloudgpu.clock import Clock
from cloudgpu.launch.inventory import Node
from cloudgpu.run.progress import Note
from cloudgpu.ssh.base import Host
from cloudgpu.ssh.bastion import bastion
from cloudgpu.ssh.carrier import Carrier, CarryingCommand, ProgramCarrier
from cloudgpu.ssh.connection import SshHost
from cloudgpu.ssh.fanout import all_or_raise, connect_all, wait_for_all
from cloudgpu.ssh.session import Patience

_BASTION_S = 15.0


class Ways:
    """What leads to nodes that the caller does not reach straight. A jump host is dialled once for all of them."""

    def __init__(
        self, key: Path, clock: Clock, known_hosts: Sequence[Path], session: Callable[[Node], CarryingCommand]
    ) -> None:
        self._key, self._clock, self._known_hosts, self._session = key, clock, known_hosts, session
        self._bastions: dict[tuple[str, tuple[str, ...], str], SshHost] = {}
        self._lock = Lock()

    def carrier(self, node: Node) -> Carrier | None:
        """What leads to a node; None where the caller gets there straight.

        Raises:
            HostKeyError: The host key of the jump host is not known.
        """
        if node.reach == "ssm":
            return ProgramCarrier(lambda: self._session(node))
        return self.gate(node) if node.bastion else None

    def gate(self, node: Node) -> SshHost:
        """The jump host before a node; it is dialled when something goes through it.

        Raises:
            HostKeyError: Its host key is not known.
        """
        return self._connected(node.bastion, node.bastion_keys, node.key)

    def bastion(self, address: str) -> SshHost:
        """The jump host; it is dialled when something goes through it.

        Raises:
            HostKeyError: Its host key is not known.
        """
        return self._connected(address)

    def _connected(self, address: str, pinned: tuple[str, ...] = (), key: str = "") -> SshHost:
        with self._lock:
            place = (address, pinned, key)
            if place not in self._bastions:
                host = bastion(address, self._known_hosts, pinned, key)
                self._bastions[place] = SshHost(
                    host, self._key, clock=self._clock, timeout_s=_BASTION_S, via=None, patience=Patience()
                )
            return self._bastions[place]


def connector(key: Path, clock: Clock, boot_s: float, ways: Ways) -> Connect:
    """How nodes are reached with this key; waits up to `boot_s` for a node that boots."""

    def connect(nodes: Sequence[Node], emit: Emit) -> list[Host]:
        emit(Note(f"connecting to {len(nodes)} nodes"))
        if all(node.own for node in nodes):
            # Nothing of it boots: a host that does not answer now will not answer for waiting.
            return list(all_or_raise(connect_all(nodes, key, clock=clock, carrier=ways.carrier)).values())
        found = wait_for_all(nodes, key, clock=clock, deadline_s=boot_s, carrier=ways.carrier)
        return list(all_or_raise(found).values())

    return connect
