"""The pulumi engine, which runs the same programs with the real Pulumi CLI, and how it is built for one state home."""

import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cloudgpu.aws.ec2 import tag_search
from cloudgpu.aws.resources.fleet import FLEET_TAG, shortfall_error
from cloudgpu.aws.resources.handler import HandlerContext
from cloudgpu.aws.session.session import Clients, CloudEndpoint
from cloudgpu.clock import Clock
from cloudgpu.cloud import CLUSTER_TAG, TOKEN_TAG, TaggedResource
from cloudgpu.engine.base import AppliedStack, Event, OnEvent, PreviewStep, Stack
from cloudgpu.engine.direct.deployment import Delays, Registry, is_definite_failure
from cloudgpu.engine.direct.language_host import read_project
from cloudgpu.engine.direct.register import DriftCheckedResource, find_drift, repair_drift
from cloudgpu.engine.plugin.tokens import Tokens
from cloudgpu.engine.pulumi_cli.command import PulumiCommand
from cloudgpu.engine.pulumi_cli.events import Listener
from cloudgpu.engine.pulumi_cli.installation import Layout, find_pulumi_cli, install
from cloudgpu.engine.pulumi_cli.stacks import CliStack, Document, StackPort
from cloudgpu.engine.pulumi_cli.state import (
    Notes,
    Recovery,
    Searcher,
    drift_checked_groups,
    notes_in,
    recorded_fleets,
    resources,
)
from cloudgpu.engine.redaction import REDACTED
from cloudgpu.errors import CloudGpuError, TeardownError, ThrottledError
from cloudgpu.text import command, plural

_NAMESPACE: Final = "cloudgpu"
_RETRIES: Final = 5
_FIRST_PAUSE_S: Final = 2.0
_INSTALLED: Final = "cli"
_ACCESS_TOKEN: Final = "PULUMI_ACCESS_TOKEN"  # noqa: S105  the name of a variable


def delete_unrecorded_nodes(
    clients: Clients, tags: Mapping[str, str], known: Collection[str], clock: Clock
) -> tuple[str, ...]:
    """Delete the cluster's fleets and instances that do not belong to a fleet in `known`. Return their IDs.

    Call this before `pulumi destroy`, because AWS does not delete a security group that nodes use.

    Args:
        clients: AWS clients of the region.
        tags: Tags of the cluster. If its name or token is missing, nothing is deleted.
        known: IDs of the fleets in Pulumi's state.
        clock: Clock used for waiting.
    """
    cluster, token = tags.get(CLUSTER_TAG, ""), tags.get(TOKEN_TAG, "")
    if not (cluster and token):
        return ()
    tagged = tag_search.find_tagged_resources(clients, cluster, token)
    orphans = [row for row in tagged if _fleet(row) not in known and row.kind in ("fleet", "instance")]
    if orphans:
        tag_search.release(clients, orphans, clock)
    return tuple(orphan.id for orphan in orphans)


def _fleet(row: TaggedResource) -> str:
    return row.id if row.kind == "fleet" else row.tags.get(FLEET_TAG, "")


@dataclass(frozen=True)
class Cli:
    """Access to the CLI for one state home and one cloud.

    Attributes:
        simulated: Whether the cloud is the rehearsal cloud, whose plugin runs cloudgpu's handlers.
        open: Function that opens a stack, given the stack, the layout, and the notes that record its running CLI.
    """

    layout: Layout
    simulated: bool
    open: Callable[[Stack, Layout, Notes], StackPort]


@dataclass(frozen=True)
class CloudAccess:
    """Access to the cloud, to adopt or delete unrecorded resources and to find the reasons for incomplete launches."""

    clients_for: Callable[[str], Clients]
    handlers: Registry
    tags: Mapping[str, str]
    delays: Delays
    delete_unrecorded: Callable[[Clients, Mapping[str, str], Collection[str], Clock], tuple[str, ...]] = (
        delete_unrecorded_nodes
    )


class PulumiEngine:
    """The pulumi engine, an implementation of `Engine`. One object can process several stacks in sequence."""

    def __init__(self, cli: Cli, site: CloudAccess, clock: Clock) -> None:
        self._cli = cli
        self._site = site
        self._clock = clock

    def preview(self, stack: Stack) -> tuple[PreviewStep, ...]:
        """Return the steps that `up` would perform, without changing anything."""
        port, _ = self._opened(stack, _ignore)
        listener = Listener(stack, _ignore, self._clock)
        port.preview(listener)
        return tuple(listener.steps)

    def up(self, stack: Stack, on_event: OnEvent) -> AppliedStack:
        """Make the stack match its program. Secret outputs are returned as `[secret]`."""
        port, recovery = self._opened(stack, on_event)
        recovery.settle(port, self._searcher(stack))
        if not self._cli.simulated and recovery.may_be_incomplete():
            # Pulumi's own plugin sends no client token, so it would repeat an interrupted launch.
            self._delete_unrecorded(stack, port, recovery, on_event)
        listener = Listener(stack, on_event, self._clock)
        try:
            outputs = self._up_with_retries(port, listener)
        except CloudGpuError as err:
            if not is_definite_failure(err):
                recovery.mark_incomplete()
            raise
        document = port.document()
        clients = self._site.clients_for(stack.region)
        delete_incomplete_fleets(port, document, clients, lambda: Listener(stack, on_event, self._clock))
        recovery.done()
        return AppliedStack(_shown(outputs), resources(document), dict(listener.changes))

    def drift(self, stack: Stack) -> tuple[str, ...]:
        """Describe the security group changes made outside the program."""
        return find_drift(self._guarded(stack), self._site.handlers, self._context)

    def repair_drift(self, stack: Stack) -> tuple[str, ...]:
        """Revert the security group changes made outside the program. Pulumi's state stays valid."""
        return repair_drift(self._guarded(stack), self._site.handlers, self._context)

    def refresh(self, stack: Stack) -> AppliedStack:
        """Re-read every resource, and drop those that no longer exist from the state."""
        port, recovery = self._opened(stack, _ignore)
        recovery.settle(port, self._searcher(stack))
        listener = Listener(stack, _ignore, self._clock)
        port.refresh(listener)
        return AppliedStack(_shown(port.outputs()), resources(port.document()), dict(listener.changes))

    def destroy(self, stack: Stack, on_event: OnEvent) -> None:
        """Delete every resource in Pulumi's state and every resource that an interrupted operation may have created.

        When this method returns, the cloud lists every resource created so far, so that a search by tag is complete.
        """
        if not self._cli.layout.project(stack).is_dir():
            return
        port, recovery = self._opened(stack, on_event, make=False)
        if port.exists():
            recovery.settle(port, self._searcher(stack))
            if recovery.may_be_incomplete():
                self._delete_unrecorded(stack, port, recovery, on_event)
            self._destroy(stack, port, on_event)
            port.remove()
        recovery.wait()
        self._cli.layout.forget(stack)

    def _guarded(self, stack: Stack) -> list[DriftCheckedResource]:
        port, _ = self._opened(stack, _ignore, make=False)
        return drift_checked_groups(port.document(), stack.region) if port.exists() else []

    def _context(self, region: str, token: str) -> HandlerContext:
        return HandlerContext(self._site.clients_for(region), self._clock, token, self._site.tags)

    def _opened(self, stack: Stack, on_event: OnEvent, *, make: bool = True) -> tuple[StackPort, Recovery]:
        """Stop any CLI left by a killed command, then open the stack. If `make`, also create and configure it."""
        layout = self._cli.layout
        folder = layout.prepare(stack)
        if self._cli.simulated:
            layout.install_plugin()
        notes = notes_in(folder)
        recovery = Recovery(notes, self._clock, self._site.delays, on_event)
        interrupted = recovery.end_abandoned()
        port = self._cli.open(stack, layout, notes)
        exists = port.exists()
        if exists and interrupted:
            port.unlock()
        if make:
            if not exists:
                port.make()
            port.configure(self._config(stack), {name: stack.config[name] for name in sorted(stack.secrets)})
        return port, recovery

    def _up_with_retries(self, port: StackPort, listener: Listener) -> Mapping[str, tuple[Any, bool]]:
        """Run `up`, and retry if AWS throttles a call. Resources in the state are not created again."""
        pause_s = _FIRST_PAUSE_S
        for _ in range(_RETRIES):
            try:
                return port.up(listener)
            except ThrottledError:
                listener.errors.clear()
                self._clock.sleep(pause_s)
                pause_s *= 2
        return port.up(listener)

    def _delete_unrecorded(self, stack: Stack, port: StackPort, recovery: Recovery, on_event: OnEvent) -> None:
        """Wait until the cloud lists all nodes, then delete the nodes that are not in the state."""
        recovery.wait()
        known = {gang.id for gang in recorded_fleets(port.document())}
        clients = self._site.clients_for(stack.region)
        for resource_id in self._site.delete_unrecorded(clients, self._site.tags, known, self._clock):
            on_event(Event("done", "delete", resource_id, "cloudgpu:stray", resource_id, "found by its tag"))

    def _destroy(self, stack: Stack, port: StackPort, on_event: OnEvent) -> None:
        try:
            port.destroy(Listener(stack, on_event, self._clock))
        except CloudGpuError as err:
            left = [f"{row.type} {row.name!r} ({row.id})" for row in resources(port.document())]
            if not left:
                raise
            name = stack.name
            message = f"could not delete {plural(len(left), 'resource')} of {name}: {err.message}"
            raise TeardownError(
                message, left=left, hint=f"run `{command('cloudgpu', 'down', name)}` to continue"
            ) from err

    def _config(self, stack: Stack) -> dict[str, Any]:
        """Return the settings of the program and of the provider, without secrets."""
        own = {f"{_NAMESPACE}:{key}": text for key, text in stack.config.items() if key not in stack.secrets}
        provider: dict[str, Any] = {"aws:region": stack.region}
        if self._site.tags:
            provider["aws:defaultTags"] = {"tags": dict(self._site.tags)}
        if not self._cli.simulated:
            # By default, the plugin retries a launch without capacity for up to an hour. `up` retries throttled calls.
            provider["aws:maxRetries"] = "1"
        return {**read_project(stack.program).defaults, **provider, **own}

    def _searcher(self, stack: Stack) -> Searcher | None:
        if not self._cli.simulated:
            return None
        tokens = Tokens(self._cli.layout.notes)
        return Searcher(self._site.handlers, self._site.clients_for, tokens, self._site.tags, stack.region)


def _shown(outputs: Mapping[str, tuple[Any, bool]]) -> dict[str, Any]:
    return {name: REDACTED if secret else value for name, (value, secret) in outputs.items()}


def _ignore(_event: object) -> None:
    return None


def delete_incomplete_fleets(
    stack: StackPort, document: Document, clients: Clients, listener: Callable[[], Listener]
) -> None:
    """Delete every fleet that launched too few instances, then raise an error with the first fleet's reason."""
    incomplete = [gang for gang in recorded_fleets(document) if gang.launched < gang.target]
    if not incomplete:
        return
    reasons = [shortfall_error(clients, gang.id, got=gang.launched, wanted=gang.target) for gang in incomplete]
    stack.destroy(listener(), [gang.urn for gang in incomplete])
    raise reasons[0]


@dataclass(frozen=True)
class PulumiOptions:
    """The user's Pulumi options.

    Attributes:
        command: Path of the CLI; None to search the PATH and the state home.
        backend: URL of the state backend; empty for files in the state home. Ignored for the rehearsal cloud.
        install: Whether the CLI may be downloaded and installed into the state home.
        profile: Profile in the AWS configuration files.
    """

    command: Path | None = None
    backend: str = ""
    install: bool = False
    profile: str = ""


def pulumi_engine(
    root: Path,
    endpoint: CloudEndpoint,
    choice: PulumiOptions,
    site: CloudAccess,
    environ: Mapping[str, str],
    clock: Clock,
) -> PulumiEngine:
    """Return the engine for one cloud. Find the CLI immediately, so that a missing CLI is reported before any launch.

    Args:
        root: Directory for Pulumi's files in the state home.
        endpoint: The rehearsal cloud, or real AWS if the URL is empty.
        choice: The user's options.
        site: The engine's access to the cloud.
        environ: The caller's environment.
        clock: Clock used for waiting.
    """
    simulated = bool(endpoint.url)
    command = find_pulumi_cli(choice.command, root / _INSTALLED, environ, install if choice.install else None)
    backend = "" if simulated else choice.backend

    def opened(stack: Stack, layout: Layout, notes: Notes) -> CliStack:
        variables = cli_environment(
            layout, environ, command=command, backend=backend, endpoint=endpoint, profile=choice.profile
        )
        return CliStack(stack, layout.project(stack), PulumiCommand(command, variables, notes.running))

    layout = Layout(root / ("rehearsal" if simulated else "aws"))
    return PulumiEngine(Cli(layout, simulated, opened), site, clock)


def cli_environment(
    layout: Layout,
    environ: Mapping[str, str],
    *,
    command: Path,
    backend: str,
    endpoint: CloudEndpoint,
    profile: str = "",
) -> dict[str, str]:
    """Return the environment variables of a CLI process.

    Args:
        layout: Paths of Pulumi's files.
        environ: The caller's environment.
        command: The CLI; its language host is in the same directory.
        backend: URL of the state backend; empty for files in the state home.
        endpoint: The rehearsal cloud, or real AWS if the URL is empty, regardless of `AWS_ENDPOINT_URL`.
        profile: Profile in the AWS configuration files.
    """
    variables = {name: value for name, value in environ.items() if _passes(name, rehearsal=bool(endpoint.url))}
    if backend.startswith(("https://", "http://")) and _ACCESS_TOKEN in environ:
        # The caller's only PULUMI_ variable that the CLI receives, because logging in to a Pulumi service requires it.
        variables[_ACCESS_TOKEN] = environ[_ACCESS_TOKEN]
    path = [str(command.parent), str(Path(sys.executable).parent), variables.get("PATH", os.defpath)]
    return {
        **variables,
        "PATH": os.pathsep.join(path),
        "PULUMI_HOME": str(layout.pulumi_home),
        "PULUMI_BACKEND_URL": backend or f"file://{layout.state}",
        "PULUMI_CONFIG_PASSPHRASE_FILE": str(layout.passphrase),
        "PULUMI_PYTHON_CMD": sys.executable,
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_AUTOMATION_API": "true",
        # The CLI, the program and the plugins communicate over loopback, which a proxy cannot reach.
        "NO_PROXY": ",".join(filter(None, [variables.get("NO_PROXY"), "127.0.0.1", "localhost"])),
        **_cloud(endpoint, profile),
    }


def _passes(name: str, *, rehearsal: bool) -> bool:
    if name.startswith(("PULUMI_", "AWS_ENDPOINT_URL")):
        return False
    return not (rehearsal and name.startswith("AWS_"))


def _cloud(endpoint: CloudEndpoint, profile: str) -> dict[str, str]:
    if not endpoint.url:
        return {"AWS_PROFILE": profile} if profile else {}
    return {
        # Nothing is downloaded: the plugin of the rehearsal cloud is in PULUMI_HOME.
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "AWS_ENDPOINT_URL": endpoint.url,
        "AWS_ACCESS_KEY_ID": endpoint.access_key_id,
        "AWS_SECRET_ACCESS_KEY": endpoint.secret_access_key,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
