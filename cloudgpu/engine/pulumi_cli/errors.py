"""What a failed run of the CLI comes to: the most telling of its diagnostics, typed."""

import re
from collections.abc import Sequence
from typing import Final

from pulumi.automation import CommandError, ConcurrentUpdateError, StackNotFoundError

from cloudgpu.engine.error_text import read_fault
from cloudgpu.engine.urn import STACK_TYPE
from cloudgpu.errors import BadRequestError, BusyError, CloudError, CloudGpuError, StateError
from cloudgpu.plan.failover import Skips, rule_of

_WIDEST: Final[tuple[Skips, ...]] = ("stop", "type", "region", "pool", "zone", "again")
"""When several resources failed: the error that rules out most decides."""
_STDERR: Final = re.compile(r"^ stderr: (?P<said>.*)", re.DOTALL | re.MULTILINE)
_ERROR: Final = re.compile(r"^error: ", re.MULTILINE)
_PASSPHRASE: Final = re.compile(r"incorrect passphrase|passphrase must be set|constructing secrets manager")
_DAMAGED: Final = re.compile(
    r"failed to load (checkpoint|snapshot)|snapshot integrity|unexpected end of JSON|unmarshall?ing the checkpoint"
)
_PLUGIN: Final = re.compile(r"no resource plugin|could not find plugin|failed to load plugin|failed to download plugin")
_LONGEST: Final = 600


def failed_run(errors: Sequence[tuple[str, str]], err: CommandError, doing: str) -> CloudGpuError:
    """The error of one run.

    Args:
        errors: (URN, message) of every error that its event stream told.
        err: What the Automation API raised.
        doing: What was tried.
    """
    if isinstance(err, ConcurrentUpdateError):
        return BusyError(f"{doing}: another Pulumi process has the stack locked", hint="wait for it to end")
    if isinstance(err, StackNotFoundError):
        return StateError(f"{doing}: Pulumi's state has no such stack", hint="see the pulumi_backend setting")
    typed = [found for urn, message in errors if (found := read_fault(message, _what(urn))) is not None]
    if typed:
        return min(typed, key=lambda one: _WIDEST.index(rule_of(one).skips))
    said = _said(errors, err)
    return read_fault(said, doing) or _untyped(errors, said, doing)


def _untyped(errors: Sequence[tuple[str, str]], said: str, doing: str) -> CloudGpuError:
    if _PASSPHRASE.search(said):
        message = f"{doing}: the passphrase does not fit Pulumi's state: {said}"
        return StateError(message, hint="bring back the file `passphrase` of the state home")
    if _DAMAGED.search(said):
        # A `StateError`, so that `down` goes on with what the tags tell.
        message = f"{doing}: Pulumi's state is damaged: {said}"
        return StateError(message, hint="bring its file back from a backup; without one, `down` goes by the tags")
    if _PLUGIN.search(said):
        return CloudError(f"{doing}: {said}", code="NoPlugin", hint="check the network: Pulumi fetches its AWS plugin")
    if errors and all(_is_program(urn) for urn, _ in errors):
        hint = "correct the program or its settings"
        return BadRequestError(f"{doing}: {said}", code="ProgramError", hint=hint)
    return CloudError(f"{doing}: {said}", code="PulumiError", hint="`cloudgpu --debug` says more")


def _said(errors: Sequence[tuple[str, str]], err: CommandError) -> str:
    """The first error told, or what the CLI wrote at its end."""
    if errors:
        return _shortened(errors[0][1])
    found = _STDERR.search(str(err))
    text = (found["said"] if found else str(err)).strip()
    parts = [part.strip() for part in _ERROR.split(text) if part.strip()]
    return _shortened(parts[-1] if parts else "it ended without saying why")


def _shortened(text: str) -> str:
    """The end of a long text: a Python traceback tells its cause last."""
    return text if len(text) <= _LONGEST else f"... {text[-_LONGEST:]}"


def _is_program(urn: str) -> bool:
    """Whether the error is the program's own; of a resource, only a refusal that is known as one says what happened."""
    return not urn or f"::{STACK_TYPE}::" in urn


def _what(urn: str) -> str:
    parts = urn.split("::")
    return f"{parts[2].rpartition('$')[2]} {parts[-1]!r}" if len(parts) > 3 else ""  # noqa: PLR2004  a URN's four parts
