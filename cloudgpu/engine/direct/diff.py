"""A resource as the program wants it, against the one that exists: create, update, replace, or nothing."""

import hashlib
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from cloudgpu.aws.resources.base import Handler, Properties
from cloudgpu.engine.base import Operation
from cloudgpu.engine.direct.journal_state import Meta, Resource
from cloudgpu.engine.direct.property_path import carried_over, differs, parse
from cloudgpu.engine.direct.resource_options import Options
from cloudgpu.engine.redaction import is_masked
from cloudgpu.errors import BadRequestError

_TOKEN_LENGTH = 56  # AWS takes 64 ASCII characters; the rest is left for handlers that make several calls


@dataclass(frozen=True)
class Wanted:
    """A resource as the program asks for it.

    Attributes:
        inputs: What the handler gets: checked, with `ignore_changes` applied, secrets in the clear.
        masked: The same as the journal holds it.
        digest: Salted hash of `masked`, type and region.
    """

    urn: str
    type: str
    name: str
    region: str
    inputs: Mapping[str, Any]
    masked: Mapping[str, Any]
    digest: str
    options: Options

    @property
    def meta(self) -> Meta:
        """What the journal keeps of the options."""
        return self.options.meta


@dataclass(frozen=True)
class Decision:
    """What has to be done with one resource, and which properties say so."""

    operation: Operation
    changed: tuple[str, ...] = ()


def decide(wanted: Wanted, present: Resource | None, handler: Handler, replaced: Set[str]) -> Decision:
    """Compare; `replaced` holds the URNs that this run has replaced already.

    Raises:
        BadRequestError: An option holds something that is no property path.
    """
    if present is None:
        return Decision("create")
    diff = handler.diff(present.inputs, wanted.masked)
    forced = (*diff.replace, *_forced(wanted, present, replaced))
    changed = tuple(dict.fromkeys((*diff.changed, *forced)))
    if forced:
        return Decision("replace", changed)
    if changed or present.unsettled:
        return Decision("update", changed)
    return Decision("same")


def with_ignored(checked: Properties, masked: Properties, present: Resource, options: Options) -> tuple[Any, Any]:
    """Inputs for the handler and for the journal, with `ignore_changes` applied.

    A secret that is ignored keeps the program's own value for the handler: the journal has only its mark.

    Raises:
        BadRequestError: An option holds something that is no property path.
    """
    kept = dict(checked)
    for path in options.ignore_changes:
        candidate = carried_over(present.inputs, kept, [path])
        kept = kept if is_masked(candidate) else candidate
    return kept, carried_over(present.inputs, masked, list(options.ignore_changes))


def client_token(cluster_token: str, urn: str, digest: str, attempt: int) -> str:
    """The same for the same thing asked for again, another one after an attempt has ended."""
    text = "\n".join((cluster_token, urn, digest, str(attempt)))
    return hashlib.sha256(text.encode()).hexdigest()[:_TOKEN_LENGTH]


def deletes_first(wanted: Wanted, handler: Handler) -> bool:
    """Whether the old one has to go before the new one can come: the program says, else the handler."""
    said = wanted.options.delete_before_replace
    return bool(getattr(handler, "delete_before_replace", False)) if said is None else said


def refuse_protected(resource: Resource, what: str) -> None:
    """Stop what would end a protected resource.

    Raises:
        BadRequestError: It is protected.
    """
    if resource.meta.protect:
        message = f"{resource.type} {resource.name!r} ({resource.id}) is protected and would be {what}"
        raise BadRequestError(message, hint="take `protect` from it in the program and run `up` once")


def _forced(wanted: Wanted, present: Resource, replaced: Set[str]) -> list[str]:
    """Reasons to replace that the handler does not know: options, and another region."""
    options = wanted.options
    reasons = [path for path in options.replace_on_changes if differs(present.inputs, wanted.masked, parse(path))]
    if present.meta.trigger and present.meta.trigger != options.meta.trigger:
        reasons.append("replacement_trigger")
    if not replaced.isdisjoint(options.replace_with):
        reasons.append("replace_with")
    if present.region != wanted.region:
        reasons.append("region")
    return reasons
