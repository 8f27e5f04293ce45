"""Parse resource options.

The direct engine supports the options that the programs in `infra/` set, and `aliases`, without which a renamed
resource would be replaced. It rejects every other option with an error that contains the option's name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pulumi.runtime.proto import resource_pb2

from cloudgpu.engine.direct.journal_state import Meta
from cloudgpu.errors import UnsupportedError

PROVIDER_MAJORS: Final[Mapping[str, int]] = {"aws": 7}
"""Major versions of the providers whose behavior the handlers implement."""

_Request = resource_pb2.RegisterResourceRequest

PROVIDER_PREFIX: Final = "pulumi:providers:"
"""Prefix of the type token of an explicit provider."""

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
    return Meta(
        dependencies=tuple(sorted({*request.dependencies, *_custom_parent(request)})),
        property_dependencies=dict(sorted(by_property.items())),
        protect=request.protect,
        retain=request.retainOnDelete,
        deleted_with=request.deletedWith,
    )


def _custom_parent(request: _Request) -> list[str]:
    """Return the parent's URN, if any. The parent is a dependency, because children must be deleted before parents."""
    return [request.parent] if request.parent else []
