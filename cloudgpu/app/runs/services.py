"""The services of a run: browser addresses, access tokens, probes until they are ready, and tunnels while it runs.

The probe connects through the same tunnel that the user's browser will use.
"""

import http.client
import queue
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from cloudgpu.backends.base import Context
from cloudgpu.errors import CloudGpuError, ConnectError, UsageError
from cloudgpu.launch.inventory import default_local_port, loopback_address
from cloudgpu.node.agent.fetch.bounded_http import MinimumSpeed, apply_limits
from cloudgpu.node.agent.masking import Mask
from cloudgpu.paths import Home, RunPaths
from cloudgpu.recipe.launch_rules import endpoints
from cloudgpu.recipe.launch_sections import Endpoint, SideService
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.template import variable_name
from cloudgpu.run.agent_messages import Chunk, Verdict
from cloudgpu.run.job import recipe_of
from cloudgpu.run.log_store import LogStore
from cloudgpu.run.progress import Note, ServiceAddress
from cloudgpu.ssh.base import Host
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.state.identifiers import derive_secret
from cloudgpu.state.record_store import RecordStore
from cloudgpu.state.run_records import RunRecord
from cloudgpu.text import command

_TOKEN_LETTERS = 40
_TIMEOUT_S = 5.0
_LOOPBACK = "127.0.0.1"
_GOOD_BELOW = 400
_PROBE = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).close()"
_PAUSE_S: Final = 0.5
_JOIN_S: Final = 6.0
"""Seconds to wait for a pending probe when the run finishes."""
_RANK: Final = 0
"""Rank of a run's main service."""


@dataclass(frozen=True)
class RunService:
    """One service of a run.

    Attributes:
        spec: Its section of the recipe, with the port, the readiness check and the page.
        main: Whether this is the run's main service rather than a side service that runs next to the ranks.
        bound: Whether the command contains `{service.address}`, so that the service listens only on that address.
    """

    name: str
    spec: Endpoint
    token: str
    main: bool
    bound: bool = False

    def url(self, local: int) -> str:
        """Return the address to open in a browser on this machine."""
        return f"http://127.0.0.1:{local}{self.spec.page.replace('{token}', self.token)}"

    def __repr__(self) -> str:
        return f"RunService({self.name!r}, port={self.spec.port})"


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
    return {service.spec.token: service.token for service in services if service.spec.token}


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
        self._ready = service.spec.ready
        self._port = service.spec.port
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
        port = service.spec.port
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


class ServiceProbes:
    """Probes the services of one run. Leaving the context stops the probes; tunnels close with the SSH connection."""

    def __init__(
        self, context: Context, record: RunRecord, host: Host | None, stop: Callable[[], None], *, fresh: bool
    ) -> None:
        """Prepare the probes without starting them.

        Args:
            context: Context that receives the progress events.
            record: The run.
            host: The head node, or None to open no services.
            stop: Function that stops the run.
            fresh: Whether the run was just started, so that it is stopped if its main service is not ready in time.
        """
        recipe = recipe_of(record)
        self._context, self._record, self._host, self._stop, self._fresh = context, record, host, stop, fresh
        self._stays = recipe.launch.service.stays if recipe.launch.service else "expiry"
        self.services = services_of(recipe, record.run_id, context.home)
        self._ready: set[str] = set()
        self._failure = ""
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "ServiceProbes":
        for service in self.services if self._host is not None else ():
            thread = threading.Thread(target=self._watch, args=(self._host, service), daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stopped.set()
        interrupted = kind is not None and not issubclass(kind, Exception)
        for thread in self._threads:
            thread.join(0.0 if interrupted else _JOIN_S)

    def logs(self, paths: RunPaths) -> LogStore:
        """Return the run's log store with service tokens masked."""
        return _MaskedLogStore(paths, self.services) if self.services else LogStore(paths)

    def shown(self, chunk: Chunk) -> Chunk:
        """Return a log chunk with service tokens masked."""
        return _without(chunk, self.services)

    def with_service_failure(self, verdict: Verdict) -> Verdict:
        """Return the final status. A newly started run whose main service never became ready has failed."""
        main = next((service for service in self.services if service.main), None)
        if self._failure:
            return Verdict("failed", None, _RANK, 0, self._failure)
        if main is None or self._host is None or not self._fresh or main.name in self._ready:
            return verdict
        if verdict.succeeded:
            return Verdict("failed", 0, _RANK, 0, "the service exited before it was ready")
        return verdict

    def _watch(self, host: Host, service: RunService) -> None:
        """Probe a service until it is ready or the time limit is reached. Runs in a separate thread."""
        clock, within = self._context.clock, int(service.spec.ready.within)
        started = clock.monotonic()
        try:
            probe = Probe(host, service)
            while not self._stopped.is_set():
                trouble = probe.ask()
                seconds = clock.monotonic() - started
                if self._stopped.is_set():
                    return
                if not trouble:
                    self._opened(service, probe, seconds)
                    return
                if seconds >= within:
                    self._give_up(service, f" after {service.spec.ready.within}: {trouble}")
                    return
                self._stopped.wait(_PAUSE_S)
        except CloudGpuError as err:
            self._give_up(service, f": {err.message}")

    def _opened(self, service: RunService, probe: Probe, seconds: float) -> None:
        self._ready.add(service.name)
        emit = self._context.emit
        emit(Note(f"{service.name} is ready after {seconds:.1f} s; open this address in a browser:"))
        # Not a note, because the address contains the token, and notes are kept in the progress log.
        emit(ServiceAddress(service.name, service.url(probe.local)))
        if probe.local != service.spec.port:
            emit(Note(f"the local port is {probe.local}: {probe.why_moved}"))
        if service.main:
            emit(Note(self._how_long()))

    def _how_long(self) -> str:
        cluster = self._context.records.cluster(self._record.cluster)
        until = f" at {cluster.lifecycle.expires_at:%Y-%m-%d %H:%M} UTC at the latest" if cluster else ""
        if self._stays == "command":
            return f"the service stops when you press Ctrl-C, and{until or ' with its cluster'}"
        again = command("cloudgpu", "tunnel", self._record.run_id)
        ends = until or " with its cluster"
        return f"the service keeps running after this command exits, and stops{ends}; `{again}` opens it again"

    def _give_up(self, service: RunService, why: str) -> None:
        """Report a service that is not ready. Stop the run if it is the main service of a newly started run."""
        problem = f"{service.name} is not ready{why}"
        if not (service.main and self._fresh):
            self._context.emit(Note(f"{problem}; the run continues"))
            return
        self._failure = problem
        self._context.emit(Note(f"{problem}; stopping the run"))
        try:
            self._stop()
        except CloudGpuError as err:
            self._context.emit(Note(f"cannot stop the run: {err.message}"))


class _MaskedLogStore(LogStore):
    """A log store that masks tokens without changing byte offsets."""

    def __init__(self, paths: RunPaths, services: tuple[RunService, ...]) -> None:
        super().__init__(paths)
        self._services = services

    def add(self, chunk: Chunk) -> bool:
        """Store a chunk with its tokens masked."""
        return super().add(_without(chunk, self._services))


def follow_stage(record: RunRecord) -> str:
    """Return the name of the stage in which a run is followed."""
    return "serve" if recipe_of(record).launch.service is not None else "train"


def stops_on_interrupt(recipe: Recipe) -> bool:
    """Return True if Ctrl-C stops the run without a prompt."""
    return recipe.launch.service is not None and recipe.launch.service.stays == "command"


def _without(chunk: Chunk, services: tuple[RunService, ...]) -> Chunk:
    if not services:
        return chunk
    return replace(chunk, raw=mask_tokens(chunk.text, services).encode(errors="surrogateescape"))
