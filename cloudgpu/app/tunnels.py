"""`tunnel`: forward local ports to ports of a node until the caller interrupts the command."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock

from cloudgpu import bounds
from cloudgpu.app.runs.services import RunService
from cloudgpu.clock import Clock
from cloudgpu.errors import ConnectError, StateError, UsageError
from cloudgpu.launch.inventory import default_local_port
from cloudgpu.run.progress import Emit, Note
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.connection import SilentPortError, SshHost
from cloudgpu.ssh.handshake import AuthRefusedError
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.record_store import RecordStore
from cloudgpu.text import command

_PORT_ARGUMENT = re.compile(r"(?:([0-9]{1,9}):)?([0-9]{1,9})")
_LOOK_S = 1.0
_PROBE_EVERY_S = 15.0
_PAUSES_S = (1.0, 2.0, 5.0, 10.0)

AuthorizeCaller = Callable[[ClusterRecord], object]
"""Function that authorizes SSH from the caller's current address."""


@dataclass(frozen=True)
class PortForward:
    """A requested tunnel.

    If `local` is 0, the default local port for the node is used or, if that port is in use, the next free port.
    """

    remote: int
    local: int = 0


@dataclass(frozen=True)
class OpenTunnel:
    """An open tunnel from a local port to a port of a node."""

    remote: int
    local: int


def is_port_forward(text: str) -> bool:
    """Return True if a command-line word is a port or LOCAL:REMOTE."""
    return _PORT_ARGUMENT.fullmatch(text) is not None


def service_ports(services: Sequence[RunService], cluster: str) -> list[str]:
    """Return the ports of a cluster's services, for a command line that does not specify a port.

    Raises:
        UsageError: No service is running on the cluster.
    """
    if not services:
        message = f"no port specified, and no service is running on cluster {cluster}"
        raise UsageError(message, hint=f"specify a port, for example {command('cloudgpu', 'tunnel', cluster, '8888')}")
    return [str(service.spec.port) for service in services]


def parse_port_forwards(texts: Sequence[str], local: int | None = None) -> tuple[PortForward, ...]:
    """Parse ports such as `8888` or `9000:8888`; `local` requires exactly one port, without LOCAL.

    Raises:
        UsageError: A port is invalid or specified twice, or `local` is combined with several ports or LOCAL:REMOTE.
    """
    forwards = tuple(_read(text) for text in texts)
    if local is not None:
        if len(forwards) != 1 or forwards[0].local:
            raise UsageError(
                "--local requires exactly one port, without LOCAL",
                hint="use either --local or LOCAL:REMOTE, for example 9000:8888",
            )
        forwards = (PortForward(forwards[0].remote, _port(str(local))),)
    for name, numbers in (
        ("port", [forward.remote for forward in forwards]),
        ("local port", [forward.local for forward in forwards if forward.local]),
    ):
        duplicate = next((number for number in numbers if numbers.count(number) > 1), None)
        if duplicate is not None:
            raise UsageError(f"{name} {duplicate} is specified twice", hint="specify each port once")
    return forwards


def open_tunnels(host: SshHost, forwards: Sequence[PortForward], emit: Emit) -> tuple[OpenTunnel, ...]:
    """Open all tunnels. If the caller specified a local port, no other port is tried.

    Raises:
        UsageError: A local port that the caller specified is in use.
    """
    opened = []
    for forward in forwards:
        reporter = _PortReporter(host.node.index, forward.remote, emit)
        local_port = forward.local or default_local_port(host.node, forward.remote)
        opened.append(
            OpenTunnel(
                forward.remote,
                host.forward(forward.remote, local=local_port, near=not forward.local, on_outcome=reporter),
            )
        )
    return tuple(opened)


def describe_tunnel(tunnel: OpenTunnel, cluster: str, node: int, served: Sequence[RunService] = ()) -> str:
    """Describe an open tunnel in one line, including the service that listens on its remote port, if any."""
    service = next((known for known in served if known.spec.port == tunnel.remote), None)
    what = f"port {tunnel.remote} on node {node} of cluster {cluster}"
    if service is None:
        return f"127.0.0.1:{tunnel.local} forwards to {what}"
    return f"{service.url(tunnel.local)} opens {service.name}, {what}"


def keep_connected(
    host: SshHost,
    cluster: ClusterRecord,
    *,
    records: RecordStore,
    clock: Clock,
    emit: Emit,
    authorize_caller: AuthorizeCaller,
) -> None:
    """Keep the connection open, reconnecting whenever it is lost. Never returns; Ctrl-C interrupts it.

    Raises:
        StateError: The cluster has been deleted.
        HostKeyError: The node's host key has changed.
        SshSetupError: This machine's key or network cannot be used.
        AuthRefusedError: The node rejects the caller's key.
    """
    next_probe = clock.monotonic() + _PROBE_EVERY_S
    while True:
        clock.sleep(_LOOK_S)
        if host.connected and clock.monotonic() < next_probe:
            continue
        try:
            host.try_run(RemoteCommand("true"))
        except ConnectError as err:
            if not err.retryable:
                raise
            _reconnect(host, cluster, err, records=records, clock=clock, emit=emit, authorize_caller=authorize_caller)
        next_probe = clock.monotonic() + _PROBE_EVERY_S


def _reconnect(
    host: SshHost,
    cluster: ClusterRecord,
    err: ConnectError,
    *,
    records: RecordStore,
    clock: Clock,
    emit: Emit,
    authorize_caller: AuthorizeCaller,
) -> None:
    """Retry until the node responds. After the first failure, authorize SSH from the caller's current address."""
    emit(Note(f"{err.message}; reconnecting"))
    lost, tries = clock.monotonic(), 0
    while True:
        if records.cluster(cluster.name) is None:
            raise StateError(
                f"cluster {cluster.name} has been deleted", hint="run `cloudgpu status` to list the clusters"
            )
        try:
            host.connect()
        except ConnectError as failure:
            if isinstance(failure, AuthRefusedError) or not failure.retryable:
                raise
            if tries == 0:
                authorize_caller(cluster)
            clock.sleep(_PAUSES_S[min(tries, len(_PAUSES_S) - 1)])
            tries += 1
        else:
            emit(Note(f"reconnected after {clock.monotonic() - lost:.0f} s"))
            return


@dataclass
class _PortReporter:
    """A callback that reports when a port of a node becomes unreachable or reachable again, once per change."""

    node: int
    port: int
    emit: Emit
    _silent: bool = False
    _lock: Lock = field(default_factory=Lock)

    def __call__(self, trouble: ConnectError | None) -> None:
        with self._lock:
            changed, self._silent = self._silent != (trouble is not None), trouble is not None
        if not changed:
            return
        if trouble is None:
            self.emit(Note(f"port {self.port} on node {self.node} is now reachable"))
        elif isinstance(trouble, SilentPortError):
            retry = "the tunnel stays open and forwards new connections when the port responds"
            self.emit(Note(f"nothing is listening on port {self.port} on node {self.node}; {retry}"))
        else:
            self.emit(Note(trouble.message))


def _read(text: str) -> PortForward:
    match = _PORT_ARGUMENT.fullmatch(text)
    if match is None:
        raise UsageError(f"{text} is not a port", hint="use a port number or LOCAL:REMOTE, for example 9000:8888")
    return PortForward(_port(match[2]), _port(match[1]) if match[1] is not None else 0)


def _port(text: str) -> int:
    try:
        return bounds.port(text)
    except ValueError:
        raise UsageError(
            f"{text} is not a port: expected 1 to {bounds.MAX_PORT}", hint="use a port number such as 8888"
        ) from None
