"""A Pulumi stack, managed through the CLI and the Automation API, and the typed errors of failed runs.

`StackPort` is the interface that the engine uses.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from pulumi.automation import (
    CommandError,
    ConcurrentUpdateError,
    Deployment,
    LocalWorkspace,
    StackNotFoundError,
    StackSettings,
)
from pulumi.automation import Stack as AutomationStack

from cloudgpu.engine.base import Stack
from cloudgpu.engine.error_text import decode_error
from cloudgpu.engine.pulumi_cli.command import PulumiCommand
from cloudgpu.engine.pulumi_cli.events import Listener
from cloudgpu.engine.pulumi_cli.installation import stack_name
from cloudgpu.engine.urn import STACK_TYPE
from cloudgpu.errors import BadRequestError, BusyError, CloudError, CloudGpuError, StateError
from cloudgpu.paths import unwritable_error
from cloudgpu.plan.launch_error_codes import Skips, rule_for_error

_WIDEST: Final[tuple[Skips, ...]] = ("stop", "type", "region", "pool", "zone", "again")
"""If several resources fail, the error whose rule comes first in this list is raised. See `Skips`."""
_STDERR: Final = re.compile(r"^ stderr: (?P<output>.*)", re.DOTALL | re.MULTILINE)
_ERROR: Final = re.compile(r"^error: ", re.MULTILINE)
_PASSPHRASE: Final = re.compile(r"incorrect passphrase|passphrase must be set|constructing secrets manager")
_DAMAGED: Final = re.compile(
    r"failed to load (checkpoint|snapshot)|snapshot integrity|unexpected end of JSON|unmarshall?ing the checkpoint"
)
_PLUGIN: Final = re.compile(r"no resource plugin|could not find plugin|failed to load plugin|failed to download plugin")
_LONGEST: Final = 600
Document = dict[str, Any]
"""A stack's state as Pulumi exports it."""
_NAMESPACE: Final = "cloudgpu"
_QUIETLY: Final[Mapping[str, Any]] = {"color": "never", "suppress_progress": True}


def error_of_failed_run(errors: Sequence[tuple[str, str]], err: CommandError, doing: str) -> CloudGpuError:
    """Return the typed error for a failed run.

    Args:
        errors: (URN, message) pairs for all errors in the run's event stream.
        err: The exception raised by the Automation API.
        doing: The attempted operation, for the message.
    """
    if isinstance(err, ConcurrentUpdateError):
        return BusyError(
            f"{doing}: another Pulumi process has locked the stack",
            hint="wait for that process to finish, then try again",
        )
    if isinstance(err, StackNotFoundError):
        return StateError(
            f"{doing}: the stack does not exist in Pulumi's state",
            hint="set `pulumi_backend` to the backend that contains the stack",
        )
    typed = [fault for urn, message in errors if (fault := decode_error(message, _resource_label(urn))) is not None]
    if typed:
        return min(typed, key=lambda fault: _WIDEST.index(rule_for_error(fault).skips))
    diagnostic = _diagnostic(errors, err)
    return decode_error(diagnostic, doing) or _untyped(errors, diagnostic, doing)


def _untyped(errors: Sequence[tuple[str, str]], diagnostic: str, doing: str) -> CloudGpuError:
    if _PASSPHRASE.search(diagnostic):
        message = f"{doing}: the passphrase does not match Pulumi's state: {diagnostic}"
        return StateError(message, hint="restore the file `passphrase` below `pulumi` in the state home")
    if _DAMAGED.search(diagnostic):
        # A StateError, so that `down` continues with a search by tag.
        message = f"{doing}: Pulumi's state is damaged: {diagnostic}"
        hint = "restore the state from a backup; if there is none, `cloudgpu down` finds the resources by their tags"
        return StateError(message, hint=hint)
    if _PLUGIN.search(diagnostic):
        return CloudError(
            f"{doing}: {diagnostic}", code="NoPlugin", hint="check the network: Pulumi must download its AWS plugin"
        )
    if errors and all(_is_program(urn) for urn, _ in errors):
        hint = "fix the program or its settings"
        return BadRequestError(f"{doing}: {diagnostic}", code="ProgramError", hint=hint)
    return CloudError(
        f"{doing}: {diagnostic}", code="PulumiError", hint="run the command again with `cloudgpu --debug` for details"
    )


def _diagnostic(errors: Sequence[tuple[str, str]], err: CommandError) -> str:
    """Return the first error event, or, if there are none, the last error that the CLI printed."""
    if errors:
        return _shortened(errors[0][1])
    match = _STDERR.search(str(err))
    text = (match["output"] if match else str(err)).strip()
    parts = [part.strip() for part in _ERROR.split(text) if part.strip()]
    return _shortened(parts[-1] if parts else "the CLI exited without an error message")


def _shortened(text: str) -> str:
    """Keep only the end of a long text, because a Python traceback ends with the cause."""
    return text if len(text) <= _LONGEST else f"... {text[-_LONGEST:]}"


def _is_program(urn: str) -> bool:
    """Return True if the error comes from the program itself rather than from a resource."""
    return not urn or f"::{STACK_TYPE}::" in urn


def _resource_label(urn: str) -> str:
    parts = urn.split("::")
    return f"{parts[2].rpartition('$')[2]} {parts[-1]!r}" if len(parts) > 3 else ""  # noqa: PLR2004  a URN's four parts


class StackPort(Protocol):
    """A Pulumi stack. Methods raise only errors from `cloudgpu.errors`."""

    def exists(self) -> bool:
        """Return True if the stack exists in the backend."""

    def make(self) -> None:
        """Create an empty stack."""

    def configure(self, config: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
        """Write the settings, with secrets encrypted."""

    def preview(self, listener: Listener) -> None:
        """Run a preview. The listener collects the steps."""

    def up(self, listener: Listener) -> Mapping[str, tuple[Any, bool]]:
        """Run the program. Return the outputs and whether each is secret."""

    def refresh(self, listener: Listener) -> None:
        """Update the state by reading every resource from the cloud."""

    def destroy(self, listener: Listener, urns: list[str] | None = None) -> None:
        """Delete all resources, or only the resources `urns` and their dependents."""

    def outputs(self) -> Mapping[str, tuple[Any, bool]]:
        """Return the outputs and whether each is secret."""

    def document(self) -> Document:
        """Return the state with secrets in plain text. Never write it to disk."""

    def replace(self, document: Document) -> None:
        """Replace the state with a modified document."""

    def unlock(self) -> None:
        """Remove the lock of a CLI that no longer runs."""

    def remove(self) -> None:
        """Remove the empty stack and its settings."""


class CliStack:
    """A `StackPort` that uses the real CLI."""

    def __init__(self, stack: Stack, folder: Path, command: PulumiCommand) -> None:
        self._stack = stack
        self._name = stack_name(stack)
        self._folder = folder
        self._command = command
        self._workspace = LocalWorkspace(work_dir=str(folder), pulumi_command=command)
        self._opened: AutomationStack | None = None

    def exists(self) -> bool:
        """Return True if the stack exists in the backend."""
        try:
            self._call("looking for the stack", lambda: self._workspace.select_stack(self._name), raw=True)
        except StackNotFoundError:
            return False
        return True

    def make(self) -> None:
        """Create an empty stack."""
        self._call("creating the stack", lambda: self._workspace.create_stack(self._name))

    def configure(self, config: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
        """Write the settings; pass secrets on standard input to the CLI, which encrypts them."""
        try:
            settings = self._workspace.stack_settings(self._name)
        except FileNotFoundError:
            settings = StackSettings()
        settings.config = dict(config)
        try:
            self._workspace.save_stack_settings(self._name, settings)
        except OSError as err:
            raise unwritable_error(self._folder, err) from err
        for name, text in secrets.items():
            arguments = ["config", "set", "--secret", "--stack", self._name, f"{_NAMESPACE}:{name}"]
            self._call(f"encrypting the setting {name}", partial(self._feed, arguments, text))

    def preview(self, listener: Listener) -> None:
        """Run a preview. The listener collects the steps."""
        self._run("preview", listener, lambda opened: opened.preview(on_event=listener.on_event, **_QUIETLY))

    def up(self, listener: Listener) -> Mapping[str, tuple[Any, bool]]:
        """Run the program. Return the outputs and whether each is secret."""
        result = self._run(
            "up", listener, lambda opened: opened.up(on_event=listener.on_event, show_secrets=False, **_QUIETLY)
        )
        return {name: (value.value, value.secret) for name, value in result.outputs.items()}

    def refresh(self, listener: Listener) -> None:
        """Update the state by reading every resource from the cloud."""
        self._run(
            "refresh",
            listener,
            lambda opened: opened.refresh(on_event=listener.on_event, show_secrets=False, **_QUIETLY),
        )

    def destroy(self, listener: Listener, urns: list[str] | None = None) -> None:
        """Delete all resources, or only the resources `urns` and their dependents."""
        chosen: dict[str, Any] = {"target": urns, "target_dependents": True} if urns else {"continue_on_error": True}
        self._run(
            "destroy",
            listener,
            lambda opened: opened.destroy(on_event=listener.on_event, show_secrets=False, **chosen, **_QUIETLY),
        )

    def outputs(self) -> Mapping[str, tuple[Any, bool]]:
        """Return the outputs and whether each is secret."""
        outputs = self._call("reading the outputs", lambda: self._workspace.stack_outputs(self._name))
        return {name: (value.value, value.secret) for name, value in outputs.items()}

    def document(self) -> Document:
        """Return the state with secrets in plain text. Never write it to disk."""
        exported = self._call("reading the state", lambda: self._workspace.export_stack(self._name))
        return {"version": exported.version, "deployment": exported.deployment}

    def replace(self, document: Document) -> None:
        """Import the state from standard input. The SDK would write the plain-text secrets to a temporary file."""
        arguments = ["stack", "import", "--stack", self._name]
        text = json.dumps(Deployment(**document).__dict__)
        self._call("recording the resources of a killed command in", lambda: self._feed(arguments, text))

    def unlock(self) -> None:
        """Remove the lock of a CLI that no longer runs."""
        arguments = ["cancel", "--yes", "--stack", self._name]
        self._call("unlocking the stack", lambda: self._feed(arguments, ""))

    def remove(self) -> None:
        """Remove the empty stack and its settings."""
        self._call("removing the stack", lambda: self._workspace.remove_stack(self._name))

    def _feed(self, arguments: list[str], text: str) -> None:
        self._command.feed(arguments, str(self._folder), text)

    def _run(self, operation: str, listener: Listener, call: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        if self._opened is None:
            self._opened = AutomationStack.select(self._name, self._workspace)
        opened = self._opened
        try:
            result = call(opened)
        except CommandError as err:
            if listener.failure is not None:
                raise listener.failure from err
            raise error_of_failed_run(listener.errors, err, f"pulumi {operation} of {self._stack.name}") from err
        if listener.failure is not None:
            raise listener.failure
        return result

    def _call(self, doing: str, call: Callable[[], Any], *, raw: bool = False) -> Any:  # noqa: ANN401
        try:
            return call()
        except CommandError as err:
            if raw and isinstance(err, StackNotFoundError):
                raise
            raise error_of_failed_run((), err, f"{doing} {self._name}") from err
