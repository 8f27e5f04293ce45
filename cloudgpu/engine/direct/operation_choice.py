"""Read a resource's options, compare the resource with its recorded state, and decide how to change it."""

import copy
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pulumi.runtime.proto import resource_pb2

from cloudgpu.aws.resources.handler import Handler, Properties
from cloudgpu.engine.base import Operation
from cloudgpu.engine.direct.journal_state import Meta, Resource
from cloudgpu.engine.direct.protobuf_values import Path
from cloudgpu.engine.redaction import is_masked
from cloudgpu.errors import BadRequestError, UnsupportedError

_PART: Final = re.compile(r"""\.?(?:\["((?:[^"\\]|\\.)*)"\]|\[([0-9]+|\*)\]|([^.\[\]"]+))""")
_ABSENT: Final = object()
PROVIDER_MAJORS: Final[Mapping[str, int]] = {"aws": 7}
"""Major versions of the providers whose behavior the handlers implement."""
_Request = resource_pb2.RegisterResourceRequest
PROVIDER_PREFIX: Final = "pulumi:providers:"
"""Prefix of the type token of an explicit provider."""
_TOKEN_LENGTH = 56  # AWS accepts 64 characters, and handlers that send several calls append a suffix


def parse_property_path(text: str) -> Path:
    """Parse a property path into its parts."""
    parts: list[str | int] = []
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            message = f"{text!r} is not a valid property path"
            raise BadRequestError(message, hint='use the form `tags.Name`, `rules[0].port` or `tags["a.b"]`')
        quoted, index, bare = match.groups()
        parts.append(_part(quoted, index, bare))
        position = match.end()
    return tuple(parts)


def restore_old_values(old: Mapping[str, Any], new: Mapping[str, Any], paths: list[str]) -> dict[str, Any]:
    """Return `new` with the values from `old` at these paths, to implement the `ignore_changes` option."""
    result = copy.deepcopy(dict(new))
    for text in paths:
        _carry(old, result, parse_property_path(text))
    return result


def _part(quoted: str | None, index: str | None, bare: str | None) -> str | int:
    if quoted is not None:
        return re.sub(r"\\(.)", r"\1", quoted)
    if index is not None:
        return index if index == "*" else int(index)
    return bare or ""


def _get(value: Any, part: str | int) -> Any:  # noqa: ANN401
    try:
        return value[part]
    except (KeyError, IndexError, TypeError):
        return _ABSENT


def _parts(part: str | int, *values: Any) -> list[str | int]:  # noqa: ANN401
    """Return the concrete keys or indices that a part matches in any of the values."""
    if part != "*":
        return [part]
    keys: dict[str | int, None] = {}
    for value in values:
        if isinstance(value, Mapping):
            keys |= dict.fromkeys(value)
        elif isinstance(value, list):
            keys |= dict.fromkeys(range(len(value)))
    return list(keys)


def _carry(old: Any, new: Any, path: Path) -> None:  # noqa: ANN401
    if not isinstance(new, dict | list) or not path:
        return
    for part in reversed(_parts(path[0], old, new)):  # in reverse, because removing a list item shifts later items
        before = _get(old, part)
        if len(path) > 1:
            _carry(before, _get(new, part), path[1:])
        elif before is _ABSENT:
            _drop(new, part)
        else:
            _put(new, part, before)


def _drop(container: Any, part: str | int) -> None:  # noqa: ANN401
    if isinstance(container, dict):
        container.pop(part, None)
    elif isinstance(part, int) and part < len(container):
        del container[part]


def _put(container: Any, part: str | int, value: Any) -> None:  # noqa: ANN401
    if isinstance(container, dict) or (isinstance(part, int) and part < len(container)):
        container[part] = copy.deepcopy(value)


_REFUSED: Final[Mapping[str, Callable[[_Request], object]]] = {
    "provider": lambda request: request.provider or request.providers or request.type.startswith(PROVIDER_PREFIX),
    "custom_timeouts": lambda request: request.customTimeouts.ListFields(),
    "replace_on_changes": lambda request: request.replaceOnChanges,
    "replace_with": lambda request: request.replace_with,
    "replacement_trigger": lambda request: request.HasField("replacement_trigger"),
    "additional_secret_outputs": lambda request: request.additionalSecretOutputs,
    "hide_diffs": lambda request: request.hideDiffs,
    "import_": lambda request: request.importId,
    "transforms": lambda request: request.transforms,
    "state_migrations": lambda request: request.state_migrations,
    "hooks": lambda request: [names for _, names in request.hooks.ListFields() if names],
    "plugin_download_url": lambda request: request.pluginDownloadURL,
    "plugin checksums": lambda request: request.pluginChecksums,
    "env_var_mappings": lambda request: request.envVarMappings,
    "a parameterized package": lambda request: request.packageRef,
    "remote components": lambda request: request.remote,
}


@dataclass(frozen=True)
class Options:
    """The options of one resource, as the engine uses them."""

    meta: Meta
    ignore_changes: tuple[str, ...] = ()
    delete_before_replace: bool | None = None
    """The option's value, or None if the program does not set it and the handler decides."""


def read_options(request: _Request) -> Options:
    """Return the options of a registration."""
    reject_unsupported_options(request)
    return Options(
        meta=_meta(request),
        ignore_changes=tuple(request.ignoreChanges),
        delete_before_replace=request.deleteBeforeReplace if request.deleteBeforeReplaceDefined else None,
    )


def reject_unsupported_options(request: _Request) -> None:
    """Reject options and provider versions that this engine does not support."""
    for option, value_in in _REFUSED.items():
        if value_in(request):
            message = f"{request.type} {request.name!r}: the direct engine does not support {option}"
            raise UnsupportedError(message, hint="leave it out, or use the pulumi engine")
    reject_unsupported_version(request.type, request.version)


def reject_unsupported_version(token: str, version: str) -> None:
    """Reject a provider version that the handlers do not support."""
    package = token.partition(":")[0]
    major = PROVIDER_MAJORS.get(package)
    if version and major is not None and version.partition(".")[0] != str(major):
        message = f"{token}: version {version} of the {package} provider is not supported, only {major}.x is"
        raise UnsupportedError(message, hint=f"use pulumi-{package} {major}.x")


def _meta(request: _Request) -> Meta:
    by_property = {
        name: tuple(sorted(dependencies.urns)) for name, dependencies in request.propertyDependencies.items()
    }
    # The parent is a dependency too, because children must be deleted before parents.
    dependencies = {*request.dependencies, *filter(None, [request.parent])}
    return Meta(
        dependencies=tuple(sorted(dependencies)),
        property_dependencies=dict(sorted(by_property.items())),
        protect=request.protect,
        retain=request.retainOnDelete,
        deleted_with=request.deletedWith,
    )


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
