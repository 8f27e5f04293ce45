"""Parse resource options. Unsupported options are rejected with an error that names them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pulumi.runtime.proto import resource_pb2

from cloudgpu.engine.direct.journal_state import Meta
from cloudgpu.engine.direct.program.protobuf_values import to_plain_value
from cloudgpu.errors import BadRequestError, UnsupportedError

PROVIDER_MAJORS: Final[Mapping[str, int]] = {"aws": 7}
"""Major versions of the providers whose behavior the handlers implement."""

_UNIT_S: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|h|m|s)")

_Request = resource_pb2.RegisterResourceRequest

_REFUSED: Final[Mapping[str, Callable[[_Request], object]]] = {
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
    """The options of one resource, as the engine uses them. Timeouts are in seconds."""

    meta: Meta
    ignore_changes: tuple[str, ...] = ()
    replace_on_changes: tuple[str, ...] = ()
    delete_before_replace: bool | None = None
    """The option's value; None to let the handler decide."""
    hide_diffs: frozenset[str] = frozenset()
    replace_with: tuple[str, ...] = ()
    create_timeout_s: float | None = None
    update_timeout_s: float | None = None


def read_options(request: _Request, digest: Callable[[object], str]) -> Options:
    """Return the options of a registration; `digest` hashes the replacement trigger.

    Raises:
        UnsupportedError: An option is not supported; the message contains its name.
        BadRequestError: The value of an option is invalid.
    """
    reject_unsupported_options(request)
    timeouts = request.customTimeouts
    return Options(
        meta=_meta(request, digest),
        ignore_changes=tuple(request.ignoreChanges),
        replace_on_changes=tuple(request.replaceOnChanges),
        delete_before_replace=request.deleteBeforeReplace if request.deleteBeforeReplaceDefined else None,
        hide_diffs=frozenset(request.hideDiffs),
        replace_with=tuple(request.replace_with),
        create_timeout_s=parse_duration(timeouts.create),
        update_timeout_s=parse_duration(timeouts.update),
    )


def reject_unsupported_options(request: _Request) -> None:
    """Reject options that this engine does not support.

    Raises:
        UnsupportedError: An option is not supported; the message contains its name.
    """
    for option, value_in in _REFUSED.items():
        if value_in(request):
            message = f"{request.type} {request.name!r}: the direct engine does not support {option}"
            raise UnsupportedError(message, hint="leave it out, or use the pulumi engine")
    reject_unsupported_version(request.type, request.version)


def reject_unsupported_version(token: str, version: str) -> None:
    """Reject a provider version that the handlers do not support.

    Raises:
        UnsupportedError: The version is not supported.
    """
    package = token.partition(":")[0]
    major = PROVIDER_MAJORS.get(package)
    if version and major is not None and version.partition(".")[0] != str(major):
        message = f"{token}: version {version} of the {package} provider is not supported, only {major}.x is"
        raise UnsupportedError(message, hint=f"use pulumi-{package} {major}.x")


def parse_duration(text: str) -> float | None:
    """Parse a Go duration, such as `1h30m`, to seconds; return None for an empty string.

    Raises:
        BadRequestError: The text is not a valid duration.
    """
    if not text:
        return None
    if not re.fullmatch(rf"(?:{_DURATION.pattern})+", text):
        message = f"{text!r} is not a valid duration"
        raise BadRequestError(message, hint="set `custom_timeouts` to a duration such as 90s, 5m or 1h30m")
    return sum(float(number) * _UNIT_S[unit] for number, unit in _DURATION.findall(text))


def _meta(request: _Request, digest: Callable[[object], str]) -> Meta:
    trigger: Any = to_plain_value(request.replacement_trigger)
    by_property = {
        name: tuple(sorted(dependencies.urns)) for name, dependencies in request.propertyDependencies.items()
    }
    return Meta(
        dependencies=tuple(sorted({*request.dependencies, *_custom_parent(request)})),
        property_dependencies=dict(sorted(by_property.items())),
        protect=request.protect,
        retain=request.retainOnDelete,
        deleted_with=request.deletedWith,
        delete_timeout_s=parse_duration(request.customTimeouts.delete),
        trigger="" if trigger is None else digest(trigger),
        secret_outputs=tuple(sorted(request.additionalSecretOutputs)),
    )


def _custom_parent(request: _Request) -> list[str]:
    """Return the parent's URN, if any, as a dependency, because children are deleted before their parents."""
    return [request.parent] if request.parent else []
