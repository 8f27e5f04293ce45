"""Compare a requested resource with its recorded state, and decide whether to create, update, replace or keep it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloudgpu.aws.resources.handler import Handler, Properties
from cloudgpu.engine.base import Operation
from cloudgpu.engine.direct.journal_state import Meta, Resource
from cloudgpu.engine.direct.program.resource_options import Options, restore_old_values
from cloudgpu.engine.redaction import is_masked
from cloudgpu.errors import BadRequestError

_TOKEN_LENGTH = 56  # AWS accepts 64 characters, and handlers that send several calls append a suffix


@dataclass(frozen=True)
class ResourceRequest:
    """A resource as the program requests it.

    Attributes:
        inputs: Inputs for the handler, checked and with `ignore_changes` applied. Secrets are in plain text.
        masked: The same inputs with secrets masked, as the journal stores them.
        digest: Salted hash of the type, the region and `masked`.
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
        """The options that the journal stores."""
        return self.options.meta


@dataclass(frozen=True)
class Decision:
    """The operation for one resource, and the properties that require it."""

    operation: Operation
    changed: tuple[str, ...] = ()


def decide_operation(request: ResourceRequest, present: Resource | None, handler: Handler) -> Decision:
    """Return the operation for a resource, and the properties that require it. A new region requires a replacement."""
    if present is None:
        return Decision("create")
    diff = handler.diff(present.inputs, request.masked)
    forced = (*diff.replace, *(() if present.region == request.region else ("region",)))
    changed = tuple(dict.fromkeys((*diff.changed, *forced)))
    if forced:
        return Decision("replace", changed)
    if changed or present.unsettled:
        return Decision("update", changed)
    return Decision("same")


def apply_ignore_changes(
    checked: Properties, masked: Properties, present: Resource, options: Options
) -> tuple[Any, Any]:
    """Return the inputs for the handler and for the journal, with `ignore_changes` applied.

    For an ignored secret, the handler receives the program's value, because the journal contains only a mask.
    """
    inputs = dict(checked)
    for path in options.ignore_changes:
        candidate = restore_old_values(present.inputs, inputs, [path])
        inputs = inputs if is_masked(candidate) else candidate
    return inputs, restore_old_values(present.inputs, masked, list(options.ignore_changes))


def client_token(cluster_token: str, urn: str, digest: str, attempt: int) -> str:
    """Return the client token of an attempt. Retries of an attempt reuse its token; the next attempt gets a new one."""
    text = "\n".join((cluster_token, urn, digest, str(attempt)))
    return hashlib.sha256(text.encode()).hexdigest()[:_TOKEN_LENGTH]


def deletes_first(request: ResourceRequest, handler: Handler) -> bool:
    """Return True if the old resource must be deleted before the new one is created."""
    option = request.options.delete_before_replace
    return bool(getattr(handler, "delete_before_replace", False)) if option is None else option


def reject_protected(resource: Resource, what: str) -> None:
    """Reject an operation that would delete a protected resource."""
    if resource.meta.protect:
        message = f"{resource.type} {resource.name!r} ({resource.id}) is protected and would be {what}"
        raise BadRequestError(message, hint="remove `protect` from the resource in the program and run `up` once")
