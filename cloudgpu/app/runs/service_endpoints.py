"""The services of a run: their browser addresses and access tokens, and the probe that waits until they are ready.

The probe connects through the same tunnel that the user's browser will use.
"""

import http.client
import queue
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudgpu.app.runs.run_recipe import recipe_of
from cloudgpu.errors import ConnectError, UsageError
from cloudgpu.launch.inventory import default_local_port, loopback_address
from cloudgpu.node.agent.fetch.bounded_http import MinimumSpeed, apply_limits
from cloudgpu.node.agent.masking import Mask
from cloudgpu.paths import Home
from cloudgpu.recipe.launch_sections import Endpoint, SideService
from cloudgpu.recipe.rules.launch import endpoints
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.template import variable_name
from cloudgpu.ssh.base import Host
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.state.identifiers import derive_secret
from cloudgpu.state.record_store import RecordStore
from cloudgpu.text import command

_TOKEN_LETTERS = 40
_TIMEOUT_S = 5.0
_LOOPBACK = "127.0.0.1"
_GOOD_BELOW = 400
_PROBE = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).close()"


@dataclass(frozen=True)
class RunService:
    """One service of a run.

    Attributes:
        main: Whether this is the run's main service rather than a side service that runs next to the ranks.
        bound: Whether the command contains `{service.address}`, so that the service listens only on that address.
    """

    name: str
    endpoint: Endpoint
    token: str
    main: bool
    bound: bool = False

    def url(self, local: int) -> str:
        """Return the address to open in a browser on this machine."""
        return f"http://127.0.0.1:{local}{self.endpoint.page.replace('{token}', self.token)}"

    def __repr__(self) -> str:
        return f"RunService({self.name!r}, port={self.endpoint.port})"


def services_of(recipe: Recipe, run_id: str, home: Home) -> tuple[RunService, ...]:
    """Return the services of a run with their tokens.

    Raises:
        StateError: The key from which tokens are derived cannot be read or written.
    """
    return tuple(
        RunService(
            name,
            endpoint,
            _token(home.service_key, run_id, name) if endpoint.token else "",
            main=endpoint is recipe.launch.service,
            bound=_is_bound(endpoint.command if isinstance(endpoint, SideService) else recipe.launch.text),
        )
        for _, name, endpoint in endpoints(recipe)
    )


def _is_bound(text: str) -> bool:
    """Return True if a command or script listens on the address that cloudgpu chose."""
    return "{service.address}" in text or variable_name("service.address") in text


def services_on(records: RecordStore, cluster: str, home: Home) -> tuple[RunService, ...]:
    """Return the services of all runs that are running on a cluster.

    Raises:
        StateError: The key cannot be read or written (see `services_of`), or a run's record contains no valid recipe.
    """
    runs = [run for run in records.runs() if run.cluster == cluster and run.state == "running" and run.ended_at is None]
    return tuple(service for run in runs for service in services_of(recipe_of(run), run.run_id, home))


def token_variables(services: Sequence[RunService]) -> dict[str, str]:
    """Return the tokens by environment variable, for the processes of the run."""
    return {service.endpoint.token: service.token for service in services if service.endpoint.token}


def mask_tokens(text: str, services: Sequence[RunService]) -> str:
    """Mask the tokens in a text without changing its length, because logs are addressed by byte offset."""
    mask = Mask(service.token for service in services)
    return mask(text.encode(errors="surrogateescape")).decode(errors="surrogateescape")


def _token(key: Path, run_id: str, name: str) -> str:
    """Derive a token from a key in the state home. `attach` recomputes the token, so the token is never stored."""
    return derive_secret(key, f"{run_id}/{name}").hex()[:_TOKEN_LETTERS]


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
