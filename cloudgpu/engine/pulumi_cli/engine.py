"""The pulumi engine: the same programs under the real Pulumi CLI."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cloudgpu.aws.resources.base import HandlerContext
from cloudgpu.aws.session.session import Clients
from cloudgpu.clock import Clock
from cloudgpu.engine.base import Applied, Event, OnEvent, Stack, Step
from cloudgpu.engine.direct.deployment import Registry, is_definite
from cloudgpu.engine.direct.drift_repair import Guarded, drift, repair_drift
from cloudgpu.engine.direct.project import read_project
from cloudgpu.engine.direct.unanswered_delays import Delays
from cloudgpu.engine.plugin.tokens import Tokens
from cloudgpu.engine.pulumi_cli.events import Listener
from cloudgpu.engine.pulumi_cli.fleet_check import check_gangs
from cloudgpu.engine.pulumi_cli.layout import Layout
from cloudgpu.engine.pulumi_cli.recovery import Notes, Recovery, Searcher, notes_in
from cloudgpu.engine.pulumi_cli.stacks import StackPort
from cloudgpu.engine.pulumi_cli.state import gangs, guarded, resources
from cloudgpu.engine.pulumi_cli.unrecorded_nodes import end_stray_nodes
from cloudgpu.engine.redaction import SHOWN
from cloudgpu.errors import CloudGpuError, TeardownError, ThrottledError
from cloudgpu.text import command

_NAMESPACE: Final = "cloudgpu"
_RETRIES: Final = 5
_FIRST_PAUSE_S: Final = 2.0


@dataclass(frozen=True)
class Cli:
    """How to reach the CLI for one home and one target.

    Attributes:
        simulated: The rehearsal cloud: our handlers are the plugin.
        open: Opens a stack; takes the stack, the layout and the note that its running CLI is told in.
    """

    layout: Layout
    simulated: bool
    open: Callable[[Stack, Layout, Notes], StackPort]


@dataclass(frozen=True)
class Site:
    """What the engine knows of the cloud: for adoption, and for the reasons that Pulumi's plugin does not tell."""

    clients_for: Callable[[str], Clients]
    handlers: Registry
    tags: Mapping[str, str]
    delays: Delays
    end_strays: Callable[[Clients, Mapping[str, str], Collection[str], Clock], tuple[str, ...]] = end_stray_nodes


class PulumiEngine:
    """Implements `Engine`. One object may carry out many stacks, one after the other."""

    def __init__(self, cli: Cli, site: Site, clock: Clock) -> None:
        self._cli = cli
        self._site = site
        self._clock = clock

    def preview(self, stack: Stack) -> tuple[Step, ...]:
        """What `up` would do, without a mutating call.

        Raises:
            CloudGpuError: The program or a question to the cloud failed.
        """
        port, _ = self._opened(stack, _ignore)
        listener = Listener(stack, _ignore, self._clock)
        port.preview(listener)
        return tuple(listener.steps)

    def up(self, stack: Stack, on_event: OnEvent) -> Applied:
        """Make the stack match its program. Secret outputs come back as `[secret]`.

        Raises:
            CapacityError: And every other `CloudGpuError` of a resource, after all that was under way had ended.
            BusyError: Another Pulumi process is at the stack.
            StateError: The home cannot be written, or the passphrase is not the state's.
        """
        port, recovery = self._opened(stack, on_event)
        recovery.settle(port, self._searcher(stack))
        if not self._cli.simulated and recovery.in_doubt():
            # Pulumi's own plugin sends no token: a launch that was cut off would be made a second time.
            self._end_strays(stack, port, recovery, on_event)
        listener = Listener(stack, on_event, self._clock)
        try:
            outputs = self._carried_out(port, listener)
        except CloudGpuError as err:
            if not is_definite(err):
                recovery.doubt()
            raise
        document = port.document()
        clients = self._site.clients_for(stack.region)
        check_gangs(port, document, clients, lambda: Listener(stack, on_event, self._clock))
        recovery.done()
        return Applied(_shown(outputs), resources(document), dict(listener.changes))

    def drift(self, stack: Stack) -> tuple[str, ...]:
        """How what lets people in differs from what the program made it, in words.

        Raises:
            CloudGpuError: The state cannot be read, or the cloud cannot be asked.
        """
        return drift(self._guarded(stack), self._site.handlers, self._context)

    def repair_drift(self, stack: Stack) -> tuple[str, ...]:
        """Put those differences right, and nothing else: Pulumi's state goes on saying what the program asked for.

        Raises:
            CloudGpuError: The state cannot be read, the cloud refused, or cannot be asked.
        """
        return repair_drift(self._guarded(stack), self._site.handlers, self._context)

    def refresh(self, stack: Stack) -> Applied:
        """Read every resource again; what is gone leaves the state.

        Raises:
            CloudGpuError: A resource could not be asked about: that is never "gone".
        """
        port, recovery = self._opened(stack, _ignore)
        recovery.settle(port, self._searcher(stack))
        listener = Listener(stack, _ignore, self._clock)
        port.refresh(listener)
        return Applied(_shown(port.outputs()), resources(port.document()), dict(listener.changes))

    def destroy(self, stack: Stack, on_event: OnEvent) -> None:
        """End everything that Pulumi's state knows, and what cut-off operations may have made.

        Returns only when the cloud shows all that was ever made, so that the search by tag which follows sees it.

        Raises:
            TeardownError: Something is left.
            CloudGpuError: The state cannot be read.
        """
        if not self._cli.layout.project(stack).is_dir():
            return
        port, recovery = self._opened(stack, on_event, make=False)
        if port.exists():
            recovery.settle(port, self._searcher(stack))
            if recovery.in_doubt():
                self._end_strays(stack, port, recovery, on_event)
            self._ended(stack, port, on_event)
            port.remove()
        recovery.wait()
        self._cli.layout.forget(stack)

    def _guarded(self, stack: Stack) -> list[Guarded]:
        port, _ = self._opened(stack, _ignore, make=False)
        return guarded(port.document(), stack.region) if port.exists() else []

    def _context(self, region: str, token: str) -> HandlerContext:
        return HandlerContext(self._site.clients_for(region), self._clock, token, self._site.tags)

    def _opened(self, stack: Stack, on_event: OnEvent, *, make: bool = True) -> tuple[StackPort, Recovery]:
        """The stack, with no CLI of a killed command at it any more."""
        layout = self._cli.layout
        folder = layout.prepare(stack)
        if self._cli.simulated:
            layout.install_plugin()
        notes = notes_in(folder)
        recovery = Recovery(notes, self._clock, self._site.delays, on_event)
        broke_off = recovery.end_abandoned()
        port = self._cli.open(stack, layout, notes)
        there = port.exists()
        if there and broke_off:
            port.unlock()
        if make:
            if not there:
                port.make()
            port.configure(self._config(stack), {name: stack.config[name] for name in sorted(stack.secrets)})
        return port, recovery

    def _carried_out(self, port: StackPort, listener: Listener) -> Mapping[str, tuple[Any, bool]]:
        """`up`, again where AWS asked for patience: what was made is in the state and is not made twice."""
        pause_s = _FIRST_PAUSE_S
        for _ in range(_RETRIES):
            try:
                return port.up(listener)
            except ThrottledError:
                listener.errors.clear()
                self._clock.sleep(pause_s)
                pause_s *= 2
        return port.up(listener)

    def _end_strays(self, stack: Stack, port: StackPort, recovery: Recovery, on_event: OnEvent) -> None:
        """End the nodes that the state does not know, as soon as the cloud shows all there may be."""
        recovery.wait()
        known = {one.id for one in gangs(port.document())}
        clients = self._site.clients_for(stack.region)
        for stray in self._site.end_strays(clients, self._site.tags, known, self._clock):
            on_event(Event("done", "delete", stray, "cloudgpu:stray", stray, "found by its tag"))

    def _ended(self, stack: Stack, port: StackPort, on_event: OnEvent) -> None:
        try:
            port.destroy(Listener(stack, on_event, self._clock))
        except CloudGpuError as err:
            left = [f"{one.type} {one.name!r} ({one.id})" for one in resources(port.document())]
            if not left:
                raise
            name = stack.name
            message = f"{len(left)} resource{'s' if len(left) > 1 else ''} of {name} left: {err.message}"
            raise TeardownError(
                message, left=left, hint=f"`{command('cloudgpu', 'down', name)}` goes on where this stopped"
            ) from err

    def _config(self, stack: Stack) -> dict[str, Any]:
        """Settings of the program and of the provider; secrets are written another way."""
        own = {f"{_NAMESPACE}:{key}": text for key, text in stack.config.items() if key not in stack.secrets}
        provider: dict[str, Any] = {"aws:region": stack.region}
        if self._site.tags:
            provider["aws:defaultTags"] = {"tags": dict(self._site.tags)}
        if not self._cli.simulated:
            # The plugin sends a call that found no capacity again, for up to an hour. Throttled calls are sent
            # again by us.
            provider["aws:maxRetries"] = "1"
        return {**read_project(stack.program).defaults, **provider, **own}

    def _searcher(self, stack: Stack) -> Searcher | None:
        if not self._cli.simulated:
            return None
        tokens = Tokens(self._cli.layout.notes)
        return Searcher(self._site.handlers, self._site.clients_for, tokens, self._site.tags, stack.region)


def _shown(outputs: Mapping[str, tuple[Any, bool]]) -> dict[str, Any]:
    return {name: SHOWN if secret else value for name, (value, secret) in outputs.items()}


def _ignore(_event: object) -> None:
    return None
