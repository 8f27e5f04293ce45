"""Probe whether a service is ready, through the same tunnel that the user's browser will use."""

import http.client
import queue
import socket
from collections.abc import Sequence

from cloudgpu.app.runs.service_urls import RunService
from cloudgpu.errors import ConnectError, UsageError
from cloudgpu.launch.inventory import default_local_port, loopback_address
from cloudgpu.node.agent.fetch.http_limits import MinimumSpeed, apply_limits
from cloudgpu.ssh.base import Host
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.text import command

_TIMEOUT_S = 5.0
_LOOPBACK = "127.0.0.1"
_GOOD_BELOW = 400
_PROBE = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).close()"


class Probe:
    """A readiness probe for one service, through a tunnel that listens on this machine.

    Attributes:
        local: The local port.
        why_moved: Reason why the local port differs from the service's port; meaningless if the ports are the same.
    """

    def __init__(self, host: Host, service: RunService) -> None:
        """Open the tunnel."""
        self._ready = service.endpoint.ready
        self._port = service.endpoint.port
        self._troubles: queue.SimpleQueue[ConnectError | None] = queue.SimpleQueue()
        default_port = default_local_port(host.node, self._port)
        self.local = host.forward(
            self._port, local=default_port, near=True, bound=service.bound, on_outcome=self._troubles.put
        )
        shared = default_port != self._port
        self.why_moved = (
            f"port {self._port} is in use by the node, which runs on this machine"
            if shared
            else f"port {self._port} is in use"
        )

    def ask(self) -> str:
        """Probe once. Return why the service is not ready, or an empty string."""
        while not self._troubles.empty():
            self._troubles.get_nowait()
        try:
            return self._get_page(self._ready.http) if self._ready.http else self._connected()
        except (OSError, http.client.HTTPException) as err:
            request = f"GET {self._ready.http} on port" if self._ready.http else "connecting to port"
            return self._trouble() or f"{request} {self._port} failed: {_describe(err)}"

    def _get_page(self, path: str) -> str:
        connection = http.client.HTTPConnection(_LOOPBACK, self.local, timeout=_TIMEOUT_S)
        # The timeout limits silence only, and a service could send one byte after the other.
        apply_limits(connection, MinimumSpeed(head_s=_TIMEOUT_S), guarded=False)
        try:
            connection.request("GET", path, headers={"Host": f"localhost:{self._port}", "Connection": "close"})
            status = connection.getresponse().status
        finally:
            connection.close()
        expected_status = self._ready.status
        if status == expected_status or (expected_status is None and status < _GOOD_BELOW):
            return ""
        expected = f", expected {expected_status}" if expected_status else ""
        return f"GET {path} on port {self._port} returned {status}{expected}"

    def _connected(self) -> str:
        """Check that the tunnel reaches the service. A connection to its local end alone always succeeds."""
        with socket.create_connection((_LOOPBACK, self.local), _TIMEOUT_S):
            try:
                trouble = self._troubles.get(timeout=_TIMEOUT_S)
            except queue.Empty:
                return f"port {self._port} did not respond within {_TIMEOUT_S:.0f} s"
        return "" if trouble is None else self._problem(trouble)

    def _trouble(self) -> str:
        """Return why the tunnel did not connect, or an empty string."""
        try:
            trouble = self._troubles.get_nowait()
        except queue.Empty:
            return ""
        return "" if trouble is None else self._problem(trouble)

    def _problem(self, trouble: ConnectError) -> str:
        return (
            f"nothing is listening on port {self._port}" if "cannot connect to" in trouble.message else trouble.message
        )


def require_free_ports(head: Host | None, services: Sequence[RunService]) -> None:
    """Reject a port that is already in use on the node: another process would be mistaken for the service.

    Raises:
        UsageError: A port is in use.
        ConnectError: The node is unreachable.
    """
    if head is None:
        return
    for service in services:
        port = service.endpoint.port
        if head.try_run(RemoteCommand("python3", "-c", _PROBE, loopback_address(head.node), str(port))).ok:
            message = f"port {port} of node {head.node.index} is already in use"
            change = (
                f"use {command('--set', f'launch.service.port={port + 1}')}"
                if service.main
                else f"give {service.name} another port"
            )
            raise UsageError(message, hint=f"{change}, or stop the process that uses port {port}")


def _describe(err: Exception) -> str:
    if isinstance(err, TimeoutError):
        return f"no response within {_TIMEOUT_S:.0f} s"
    return str(err) or type(err).__name__
