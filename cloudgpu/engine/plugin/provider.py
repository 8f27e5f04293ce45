"""Pulumi's `ResourceProvider` service: its settings, the direct engine's handlers behind it, and its gRPC server."""

import ipaddress
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import grpc  # type: ignore[import-untyped]
from google.protobuf import empty_pb2  # type: ignore[import-untyped]
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc

from cloudgpu.aws.resources.handler import ExistingResource, Handler, HandlerContext
from cloudgpu.aws.session.errors import is_taken
from cloudgpu.aws.session.session import Clients, CloudEndpoint
from cloudgpu.clock import Clock
from cloudgpu.engine.direct.deployment import Registry, WatchedClock, is_definite_failure
from cloudgpu.engine.direct.protobuf_values import Path, is_unknown, struct, to_plain
from cloudgpu.engine.error_text import encode_error
from cloudgpu.engine.plugin.tokens import Tokens
from cloudgpu.engine.redaction import Redactor, is_masked
from cloudgpu.errors import AuthError, BadRequestError, CloudGpuError, UnsupportedError
from cloudgpu.files import parse_json
from cloudgpu.processes import process_start

_KNOWN: Final = frozenset({"region", "version", "defaultTags", "maxRetries"})
_HARMLESS: Final = frozenset(
    {"skipCredentialsValidation", "skipMetadataApiCheck", "skipRegionValidation", "skipRequestingAccountId"}
)
_REGION: Final = "region"
"""Property that every resource and function of the provider accepts in addition to its specific ones."""
_SEARCHES: Final = 3
_SEARCH_PAUSE_S: Final = 0.5
PARENT_COMMAND_VARIABLE: Final = "CLOUDGPU_PLUGIN_ENDS_WITH"
"""Environment variable containing the `pid:start` of the cloudgpu process that runs the CLI.

The plugin exits when that process exits.
"""
_CALLS_AT_ONCE: Final = 32
_LOOK_EVERY_S: Final = 0.25
_LARGEST_MESSAGE: Final = 400 * 1024 * 1024
"""Maximum gRPC message size in bytes, the same as in Pulumi's own plugins."""


@dataclass(frozen=True)
class Configuration:
    """The provider settings that the plugin supports."""

    region: str
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags from `defaultTags`. A resource's tags take precedence."""


def reject_ignored_settings(values: Mapping[str, Any]) -> None:
    """Reject provider settings that the plugin would silently ignore."""
    unknown = sorted(name for name in values if name not in _KNOWN | _HARMLESS)
    if unknown:
        message = f"the rehearsal plugin does not support the provider setting {', '.join(unknown)}"
        raise UnsupportedError(message, code="UnsupportedProperty", hint="leave it out")


def read_configuration(values: Mapping[str, Any], environ: Mapping[str, str]) -> Configuration:
    """Read the provider settings. As with Pulumi's own plugin, the environment may set the region."""
    reject_ignored_settings(values)
    loopback_endpoint(environ)
    region = str(values.get("region") or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "")
    if not region or is_unknown(region):
        raise BadRequestError(
            "no AWS region is set", code="NoRegion", hint="run `pulumi config set aws:region us-east-1`"
        )
    return Configuration(region, _tags(values.get("defaultTags")))


def loopback_endpoint(environ: Mapping[str, str]) -> CloudEndpoint:
    """Return the endpoint and access key of the rehearsal cloud from the environment."""
    url = environ.get("AWS_ENDPOINT_URL", "")
    if not _is_loopback(url):
        reason = f"the endpoint {url} is not on this machine" if url else "AWS_ENDPOINT_URL is not set"
        message = f"{reason}: this plugin only works with the rehearsal cloud"
        hint = 'run `eval "$(cloudgpu rehearsal env)"`; for real AWS, use another PULUMI_HOME'
        raise BadRequestError(message, code="NotLoopback", hint=hint)
    key, secret = environ.get("AWS_ACCESS_KEY_ID", ""), environ.get("AWS_SECRET_ACCESS_KEY", "")
    if not (key and secret):
        raise AuthError("no access key for the rehearsal cloud is set", hint='run `eval "$(cloudgpu rehearsal env)"`')
    return CloudEndpoint(url, key, secret)


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _tags(setting: object) -> dict[str, str]:
    """Return the tags in `defaultTags`. Pulumi sends nested provider settings as JSON text."""
    try:
        parsed = parse_json(setting) if isinstance(setting, str) and setting else setting
    except ValueError as err:
        message = f"defaultTags is not valid JSON: {err}"
        hint = "set each tag with `pulumi config set --path aws:defaultTags.tags.NAME VALUE`"
        raise BadRequestError(message, code="InvalidProperty", hint=hint) from err
    tags = parsed.get("tags") if isinstance(parsed, dict) else None
    return {str(key): str(value) for key, value in tags.items()} if isinstance(tags, dict) else {}


class Provider(provider_pb2_grpc.ResourceProviderServicer):
    """The service of one plugin process. The CamelCase methods are the gRPC methods; each call has its own thread."""

    def __init__(
        self,
        *,
        version: str,
        handlers: Registry,
        clients_for: Callable[[str], Clients],
        environ: Mapping[str, str],
        tokens: Tokens,
        clock: Clock,
    ) -> None:
        self._version = version
        self._handlers = handlers
        self._clients_for = clients_for
        self._environ = environ
        self._tokens = tokens
        self._clock = clock
        self._configuration = Configuration("")

    def Handshake(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802, ANN401, ARG002
        """Accept secrets, so that values derived from them stay secret. Decline resource references and outputs."""
        return provider_pb2.ProviderHandshakeResponse(accept_secrets=True, accept_resources=False, accept_outputs=False)

    def GetPluginInfo(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802, ANN401, ARG002
        """Return the version of the `pulumi-aws` package, whose plugin this plugin replaces."""
        return plugin_pb2.PluginInfo(version=self._version)

    def CheckConfig(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802, ANN401
        """Reject provider settings that the plugin would silently ignore."""
        with _encoded_errors(context):
            reject_ignored_settings(to_plain(request.news).values)
        return provider_pb2.CheckResponse(inputs=request.news)

    def DiffConfig(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802, ANN401, ARG002
        """Return no changes. Each resource stores its region, so changed provider settings do not replace resources."""
        return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_NONE)

    def Configure(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802, ANN401
        """Set the region and the default tags."""
        with _encoded_errors(context):
            self._configuration = read_configuration(to_plain(request.args).values, self._environ)
        return provider_pb2.ConfigureResponse(
            acceptSecrets=True, supportsPreview=True, acceptResources=False, acceptOutputs=False
        )

    def Check(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802, ANN401
        """Return the inputs with defaults filled in. Reject unknown properties."""
        with _encoded_errors(context):
            handler, region, properties = self._parsed(request.urn, request.news)
            inputs = {**handler.check(properties), _REGION: region}
        return provider_pb2.CheckResponse(inputs=_sealed(inputs, request.news))

    def Diff(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802, ANN401
        """Return the changed inputs and the inputs that require a replacement."""
        with _encoded_errors(context):
            handler, region, new = self._parsed(request.urn, request.news)
            _, old_region, old = self._parsed(request.urn, request.old_inputs)
            diff = handler.diff(old, new)
        moved = (_REGION,) if region != old_region else ()
        changes = provider_pb2.DiffResponse.DIFF_SOME if diff.changed or moved else provider_pb2.DiffResponse.DIFF_NONE
        return provider_pb2.DiffResponse(
            changes=changes,
            diffs=[*diff.changed, *moved],
            replaces=[*diff.replace, *moved],
            deleteBeforeReplace=bool(getattr(handler, "delete_before_replace", False)),
        )

    def Create(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802, ANN401
        """Create the resource with a deterministic token, so that a retry adopts an interrupted call's resource."""
        if request.preview:
            return provider_pb2.CreateResponse(properties=request.properties)
        with _encoded_errors(context):
            handler, region, inputs = self._parsed(request.urn, request.properties)
            token = self._tokens.token(request.urn, handler.type, region, inputs)
            made = self._create(handler, self._context(region, token, request), inputs, request.urn)
        return provider_pb2.CreateResponse(
            id=made.id, properties=_sealed({**made.outputs, _REGION: region}, request.properties)
        )

    def Read(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802, ANN401
        """Return the recorded properties, updated from the cloud; or an empty response if the resource is missing."""
        with _encoded_errors(context):
            handler, region, inputs = self._parsed(request.urn, request.inputs)
            recorded = to_plain(request.properties).values
            region = str(recorded.get(_REGION) or region)
            physical = handler.read(self._context(region, "", request), request.id)
        if physical is None:
            return provider_pb2.ReadResponse()
        outputs = {**recorded, **physical.outputs}
        known = inputs or {name: value for name, value in physical.outputs.items() if name in _accepted(handler)}
        return provider_pb2.ReadResponse(
            id=physical.id,
            properties=_sealed({**outputs, _REGION: region}, request.properties, request.inputs),
            inputs=_sealed({**known, _REGION: region}, request.inputs),
        )

    def Update(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802, ANN401
        """Update the resource in place."""
        if request.preview:
            return provider_pb2.UpdateResponse(properties=request.news)
        with _encoded_errors(context):
            handler, region, new = self._parsed(request.urn, request.news)
            _, _, old = self._parsed(request.urn, request.old_inputs)
            token = self._tokens.token(request.urn, handler.type, region, new)
            changed = handler.update(self._context(region, token, request), request.id, old, new)
        return provider_pb2.UpdateResponse(
            properties=_sealed({**changed.outputs, _REGION: region}, request.news, request.olds)
        )

    def Delete(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802, ANN401
        """Delete the resource and wait until the cloud confirms the deletion."""
        with _encoded_errors(context):
            handler, region, outputs = self._parsed(request.urn, request.properties)
            handler.delete(self._context(region, "", request), request.id, outputs)
            self._tokens.end(request.urn)
        return empty_pb2.Empty()

    def Invoke(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802, ANN401
        """Call a provider function."""
        with _encoded_errors(context):
            args = to_plain(request.args).values
            region = str(args.pop(_REGION, "") or self._configuration.region)
            result = self._handlers.invoke(request.tok, args, self._clients_for(region))
        return provider_pb2.InvokeResponse(**{"return": struct(result)})

    def Cancel(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802, ANN401, ARG002
        """Do nothing: operations in progress finish and are recorded, and the CLI starts no new operations."""
        return empty_pb2.Empty()

    def _create(self, handler: Handler, ctx: HandlerContext, inputs: Mapping[str, Any], urn: str) -> ExistingResource:
        try:
            return handler.create(ctx, inputs)
        except CloudGpuError as err:
            if is_taken(err) or not is_definite_failure(err):
                # An earlier attempt may have created the resource, or the response was lost: search before failing.
                physical = self._find(handler, ctx, inputs)
                if physical is not None and physical.settled:
                    return physical
                if physical is None:
                    raise
            self._clear(handler, ctx, inputs, urn)
            raise

    def _find(self, handler: Handler, ctx: HandlerContext, inputs: Mapping[str, Any]) -> ExistingResource | None:
        for attempt in range(_SEARCHES):
            physical = handler.find(ctx, inputs)
            if physical is not None or attempt == _SEARCHES - 1:
                return physical
            ctx.clock.sleep(_SEARCH_PAUSE_S)
        return None

    def _clear(self, handler: Handler, ctx: HandlerContext, inputs: Mapping[str, Any], urn: str) -> None:
        """Delete what the failed attempt created, because Pulumi's state does not list it, and end the attempt."""
        partial = handler.find(ctx, inputs)
        if partial is not None:
            handler.delete(ctx, partial.id, partial.outputs)
        self._tokens.end(urn)

    def _parsed(self, urn: str, properties: Any) -> tuple[Handler, str, dict[str, Any]]:  # noqa: ANN401
        """Return the handler, the region, and the properties other than the region."""
        values = to_plain(properties).values
        region = str(values.pop(_REGION, "") or self._configuration.region)
        return self._handlers.handler(_type(urn)), region, values

    def _context(self, region: str, token: str, request: Any) -> HandlerContext:  # noqa: ANN401
        limit_s = float(request.timeout) or None
        clock = WatchedClock(self._clock, what=request.urn, on_wait=lambda _elapsed_s: None, timeout_s=limit_s)
        return HandlerContext(self._clients_for(region), clock, token, self._configuration.tags)


def _type(urn: str) -> str:
    """Return the type token of a URN, without the types of its parents."""
    return urn.split("::")[2].rpartition("$")[2]


def _sealed(values: Mapping[str, Any], *sources: Any) -> Any:  # noqa: ANN401
    """Encode properties. Mark a property as secret if it is secret in `sources` or contains a secret from `sources`."""
    redactor = Redactor("")
    paths: set[Path] = set()
    for source in sources:
        properties = to_plain(source)
        redactor.add_secrets(properties.values, properties.secret_paths)
        paths |= properties.secret_paths
    masked = redactor.masked(values, paths)
    return struct(values, frozenset(name for name, value in masked.items() if is_masked(value)))


def _accepted(handler: Handler) -> frozenset[str]:
    accepts: frozenset[str] = getattr(handler, "accepts", frozenset())
    return accepts | {"tags"}


@contextmanager
def _encoded_errors(context: grpc.ServicerContext) -> Iterator[None]:
    """Abort the gRPC call with an encoded error if the body raises CloudGpuError. Other exceptions propagate."""
    try:
        yield
    except CloudGpuError as err:
        context.abort(grpc.StatusCode.UNKNOWN, encode_error(err))


def serve(provider: Provider) -> tuple[grpc.Server, int]:
    """Start the server on a free port of 127.0.0.1; return the server and its port."""
    limits = [("grpc.max_receive_message_length", _LARGEST_MESSAGE), ("grpc.max_send_message_length", _LARGEST_MESSAGE)]
    server = grpc.server(ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="plugin"), options=limits)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(provider, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


def wait_for_parent_exit(parent: int, command: str = "") -> None:
    """Wait until the CLI that started this process, or the cloudgpu process that runs the CLI, has exited.

    Args:
        parent: Process ID of the CLI.
        command: `pid:start` of the cloudgpu process; empty if the user runs the CLI directly.
    """
    pid, _, start = command.partition(":")
    stopped = threading.Event()
    while os.getppid() == parent and (not command or process_start(int(pid)) == start):
        stopped.wait(_LOOK_EVERY_S)
