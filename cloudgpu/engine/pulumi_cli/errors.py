"""Map a failed run of the Pulumi CLI to a typed error."""

import re
from collections.abc import Sequence
from typing import Final

from pulumi.automation import CommandError, ConcurrentUpdateError, StackNotFoundError

from cloudgpu.engine.error_text import decode_error
from cloudgpu.engine.urn import STACK_TYPE
from cloudgpu.errors import BadRequestError, BusyError, CloudError, CloudGpuError, StateError
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
