"""Open the services of a run on this machine while the run is followed."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from cloudgpu.app.runs.run_recipe import recipe_of
from cloudgpu.app.runs.service_endpoints import Probe, RunService, mask_tokens, services_of
from cloudgpu.backends.base import Context
from cloudgpu.errors import CloudGpuError
from cloudgpu.paths import RunPaths
from cloudgpu.recipe.schema import Recipe
from cloudgpu.run.agent_messages import Chunk, Verdict
from cloudgpu.run.log_store import LogStore
from cloudgpu.run.progress import Note, ServiceAddress
from cloudgpu.ssh.base import Host
from cloudgpu.state.run_record import RunRecord
from cloudgpu.text import command

_PAUSE_S: Final = 0.5
_LEAVE_S: Final = 6.0
"""Seconds to wait for a pending probe when the run finishes."""
_RANK: Final = 0
"""Rank of a run's main service."""


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
            thread.join(0.0 if interrupted else _LEAVE_S)

    def logs(self, paths: RunPaths) -> LogStore:
        """Return the run's log store with service tokens masked."""
        return _MaskedLogStore(paths, self.services) if self.services else LogStore(paths)

    def shown(self, chunk: Chunk) -> Chunk:
        """Return a log chunk with service tokens masked."""
        return _without(chunk, self.services)

    def judged(self, verdict: Verdict) -> Verdict:
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
        clock, within = self._context.clock, int(service.endpoint.ready.within)
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
                    self._give_up(service, f" after {service.endpoint.ready.within}: {trouble}")
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
        if probe.local != service.endpoint.port:
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
