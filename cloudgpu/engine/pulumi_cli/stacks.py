"""One stack under the CLI, by the Automation API. `StackPort` is what the engine needs of it."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from pulumi.automation import (
    CommandError,
    Deployment,
    LocalWorkspace,
    StackNotFoundError,
    StackSettings,
)
from pulumi.automation import Stack as AutomationStack

from cloudgpu.engine.base import Stack
from cloudgpu.engine.pulumi_cli.command import Command
from cloudgpu.engine.pulumi_cli.errors import failed_run
from cloudgpu.engine.pulumi_cli.events import Listener
from cloudgpu.engine.pulumi_cli.layout import stack_name
from cloudgpu.paths import unwritable

Document = dict[str, Any]
"""A stack's state as Pulumi exports it."""

_NAMESPACE: Final = "cloudgpu"
_QUIETLY: Final[Mapping[str, Any]] = {"color": "never", "suppress_progress": True}


class StackPort(Protocol):
    """One stack. Every method raises only errors of `cloudgpu.errors`."""

    def exists(self) -> bool:
        """Whether the backend has it."""

    def make(self) -> None:
        """Make it, empty."""

    def configure(self, config: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
        """Write its settings; secrets encrypted."""

    def preview(self, listener: Listener) -> None:
        """What `up` would do."""

    def up(self, listener: Listener) -> Mapping[str, tuple[Any, bool]]:
        """Carry the program out; outputs, each with whether it is secret."""

    def refresh(self, listener: Listener) -> None:
        """Read every resource again."""

    def destroy(self, listener: Listener, urns: list[str] | None = None) -> None:
        """End all of it, or these and what depends on them."""

    def outputs(self) -> Mapping[str, tuple[Any, bool]]:
        """Outputs, each with whether it is secret."""

    def document(self) -> Document:
        """Its state, secrets in the clear: for memory alone."""

    def replace(self, document: Document) -> None:
        """Put another state in its place."""

    def unlock(self) -> None:
        """Take away the lock of a CLI that is gone."""

    def remove(self) -> None:
        """Remove the stack, which holds nothing any more, with its settings."""


class CliStack:
    """A `StackPort` over the real CLI."""

    def __init__(self, stack: Stack, folder: Path, command: Command) -> None:
        self._stack = stack
        self._name = stack_name(stack)
        self._folder = folder
        self._command = command
        self._workspace = LocalWorkspace(work_dir=str(folder), pulumi_command=command)
        self._opened: AutomationStack | None = None

    def exists(self) -> bool:
        """Whether the backend has it."""
        try:
            self._carried("looking for the stack", lambda: self._workspace.select_stack(self._name), raw=True)
        except StackNotFoundError:
            return False
        return True

    def make(self) -> None:
        """Make it, empty."""
        self._carried("making the stack", lambda: self._workspace.create_stack(self._name))

    def configure(self, config: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
        """Write its settings; secrets through the CLI's standard input, which encrypts them."""
        try:
            kept = self._workspace.stack_settings(self._name)
        except FileNotFoundError:
            kept = StackSettings()
        kept.config = dict(config)
        try:
            self._workspace.save_stack_settings(self._name, kept)
        except OSError as err:
            raise unwritable(self._folder, err) from err
        for name, text in secrets.items():
            arguments = ["config", "set", "--secret", "--stack", self._name, f"{_NAMESPACE}:{name}"]
            self._carried(f"encrypting the setting {name}", partial(self._fed, arguments, text))

    def preview(self, listener: Listener) -> None:
        """What `up` would do."""
        self._run("preview", listener, lambda one: one.preview(on_event=listener.on_event, **_QUIETLY))

    def up(self, listener: Listener) -> Mapping[str, tuple[Any, bool]]:
        """Carry the program out; outputs, each with whether it is secret."""
        result = self._run(
            "up", listener, lambda one: one.up(on_event=listener.on_event, show_secrets=False, **_QUIETLY)
        )
        return {name: (value.value, value.secret) for name, value in result.outputs.items()}

    def refresh(self, listener: Listener) -> None:
        """Read every resource again."""
        self._run(
            "refresh", listener, lambda one: one.refresh(on_event=listener.on_event, show_secrets=False, **_QUIETLY)
        )

    def destroy(self, listener: Listener, urns: list[str] | None = None) -> None:
        """End all of it, or these and what depends on them."""
        chosen: dict[str, Any] = {"target": urns, "target_dependents": True} if urns else {"continue_on_error": True}
        self._run(
            "destroy",
            listener,
            lambda one: one.destroy(on_event=listener.on_event, show_secrets=False, **chosen, **_QUIETLY),
        )

    def outputs(self) -> Mapping[str, tuple[Any, bool]]:
        """Outputs, each with whether it is secret."""
        found = self._carried("reading the outputs", lambda: self._workspace.stack_outputs(self._name))
        return {name: (value.value, value.secret) for name, value in found.items()}

    def document(self) -> Document:
        """Its state, secrets in the clear: for memory alone."""
        exported = self._carried("reading the state", lambda: self._workspace.export_stack(self._name))
        return {"version": exported.version, "deployment": exported.deployment}

    def replace(self, document: Document) -> None:
        """Put another state in its place, by standard input: the SDK would leave it in a file for a while."""
        arguments = ["stack", "import", "--stack", self._name]
        text = json.dumps(Deployment(**document).__dict__)
        self._carried("recording what a killed command made", lambda: self._fed(arguments, text))

    def unlock(self) -> None:
        """Take away the lock of a CLI that is gone."""
        arguments = ["cancel", "--yes", "--stack", self._name]
        self._carried("unlocking the stack", lambda: self._fed(arguments, ""))

    def remove(self) -> None:
        """Remove the stack, which holds nothing any more, with its settings."""
        self._carried("removing the stack", lambda: self._workspace.remove_stack(self._name))

    def _fed(self, arguments: list[str], text: str) -> None:
        self._command.feed(arguments, str(self._folder), text)

    def _run(self, what: str, listener: Listener, call: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        if self._opened is None:
            self._opened = AutomationStack.select(self._name, self._workspace)
        opened = self._opened
        try:
            result = call(opened)
        except CommandError as err:
            if listener.failure is not None:
                raise listener.failure from err
            raise failed_run(listener.errors, err, f"pulumi {what} of {self._stack.name}") from err
        if listener.failure is not None:
            raise listener.failure
        return result

    def _carried(self, doing: str, call: Callable[[], Any], *, raw: bool = False) -> Any:  # noqa: ANN401
        try:
            return call()
        except CommandError as err:
            if raw and isinstance(err, StackNotFoundError):
                raise
            raise failed_run((), err, f"{doing} {self._name}") from err
