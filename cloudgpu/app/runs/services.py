"""The services of a run while it is followed: waits for them, opens them on this machine, and says where."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from cloudgpu.app.runs.run_recipe import recipe_of
from cloudgpu.app.runs.service_probe import Probe
from cloudgpu.app.runs.service_urls import Served, hidden, services_of
from cloudgpu.backends.context import Context
from cloudgpu.errors import CloudGpuError
from cloudgpu.paths import RunPaths
from cloudgpu.recipe.schema import Recipe
from cloudgpu.run.log_store import LogStore
from cloudgpu.run.progress import Note
from cloudgpu.run.verdict import Chunk, Verdict
from cloudgpu.ssh.base import Host
from cloudgpu.state.records import RunRecord
from cloudgpu.text import command

_PAUSE_S: Final = 0.5
_LEAVE_S: Final = 6.0
"""For a question that is under way when the run ends."""
_RANK: Final = 0
"""Of the service that a run consists of."""


class Serving:
    """Watches over the services of one run. Leaving it asks nobody any more; tunnels close with their connection."""

    def __init__(
        self, context: Context, record: RunRecord, host: Host | None, stop: Callable[[], None], *, fresh: bool
    ) -> None:
        """Nothing is asked yet.

        Args:
            context: Receives the progress events.
            record: The run.
            host: The head; None where nothing is to be opened.
            stop: Ends the run.
            fresh: Whether the run has just been started, so that one that does not get ready is ended.
        """
        recipe = recipe_of(record)
        self._context, self._record, self._host, self._stop, self._fresh = context, record, host, stop, fresh
        self._stays = recipe.launch.service.stays if recipe.launch.service else "expiry"
        self.services = services_of(recipe, record.run_id, context.home)
        self._ready: set[str] = set()
        self._late = ""
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "Serving":
        for one in self.services if self._host is not None else ():
            thread = threading.Thread(target=self._watch, args=(self._host, one), daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(_LEAVE_S)

    def logs(self, paths: RunPaths) -> LogStore:
        """The run's logs, without its tokens."""
        return _Discreet(paths, self.services) if self.services else LogStore(paths)

    def shown(self, chunk: Chunk) -> Chunk:
        """A piece of a log without the tokens."""
        return _without(chunk, self.services)

    def judged(self, verdict: Verdict) -> Verdict:
        """The run's verdict: a service that ended before it was ready, or never was, has failed."""
        main = next((one for one in self.services if one.main), None)
        if self._late:
            return Verdict("failed", None, _RANK, 0, self._late)
        if main is None or self._host is None or not self._fresh or main.name in self._ready:
            return verdict
        if verdict.succeeded:
            return Verdict("failed", 0, _RANK, 0, "the service ended before it was ready")
        return verdict

    def _watch(self, host: Host, one: Served) -> None:
        """Ask until it is ready or late; runs in a thread of its own."""
        clock, within = self._context.clock, int(one.endpoint.ready.within)
        began = clock.monotonic()
        try:
            probe = Probe(host, one)
            while not self._over.is_set():
                trouble = probe.ask()
                seconds = clock.monotonic() - began
                if self._over.is_set():
                    return
                if not trouble:
                    self._opened(one, probe, seconds)
                    return
                if seconds >= within:
                    self._give_up(one, f" after {one.endpoint.ready.within}: {trouble}")
                    return
                self._over.wait(_PAUSE_S)
        except CloudGpuError as err:
            self._give_up(one, f": {err.message}")

    def _opened(self, one: Served, probe: Probe, seconds: float) -> None:
        self._ready.add(one.name)
        emit = self._context.emit
        emit(Note(f"{one.name} is ready after {seconds:.1f} s; open in a browser:"))
        emit(Note(one.url(probe.local)))
        if probe.local != one.endpoint.port:
            emit(Note(f"its port is {probe.local} here: {probe.why_moved}"))
        if one.main:
            emit(Note(self._how_long()))

    def _how_long(self) -> str:
        cluster = self._context.records.cluster(self._record.cluster)
        until = f" at {cluster.expires_at:%Y-%m-%d %H:%M} UTC at the latest" if cluster else ""
        if self._stays == "command":
            return f"it ends with this command (Ctrl-C), and{until or ' with its cluster'}"
        again = command("cloudgpu", "tunnel", self._record.run_id)
        return f"it stays when this command is left, and ends{until or ' with its cluster'}; `{again}` opens it again"

    def _give_up(self, one: Served, why: str) -> None:
        """A run that is its service ends when that does not get ready; one that has it beside its ranks goes on."""
        told = f"{one.name} is not ready{why}"
        if not (one.main and self._fresh):
            self._context.emit(Note(f"{told}; the run goes on"))
            return
        self._late = told
        self._context.emit(Note(f"{told}; ending it"))
        try:
            self._stop()
        except CloudGpuError as err:
            self._context.emit(Note(f"it could not be ended: {err.message}"))


class _Discreet(LogStore):
    """Keeps the tokens out of the logs on this machine; every byte stays at its place."""

    def __init__(self, paths: RunPaths, services: tuple[Served, ...]) -> None:
        super().__init__(paths)
        self._services = services

    def add(self, chunk: Chunk) -> bool:
        """As any log's, without the tokens."""
        return super().add(_without(chunk, self._services))


def stage_of(record: RunRecord) -> str:
    """What following a run is called: a service is not trained."""
    return "serve" if recipe_of(record).launch.service is not None else "train"


def ends_with_its_command(recipe: Recipe) -> bool:
    """Whether Ctrl-C ends the run without a question."""
    return recipe.launch.service is not None and recipe.launch.service.stays == "command"


def _without(chunk: Chunk, services: tuple[Served, ...]) -> Chunk:
    text = hidden(chunk.text, services)
    return chunk if text == chunk.text else replace(chunk, text=text)
