"""Pulumi's `ResourceMonitor` service, run inside this process. The SDK calls the service as it would call the CLI.

The SDK makes every call on a separate thread, so independent resources are created in parallel. The first failure
closes the monitor: operations in progress finish and are recorded, and no new operations start.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol, TypeVar

from google.protobuf import empty_pb2  # type: ignore[import-untyped]
from pulumi.runtime.proto import provider_pb2, resource_pb2

from cloudgpu.aws.resources.handler import Handler, HandlerContext
from cloudgpu.aws.session.session import Clients
from cloudgpu.clock import CancelScope
from cloudgpu.engine.direct.deployment import Gate, Registry, StoppedError
from cloudgpu.engine.direct.journal_state import Resource
from cloudgpu.engine.direct.operation_choice import (
    Options,
    ResourceRequest,
    apply_ignore_changes,
    read_options,
    reject_unsupported_version,
)
from cloudgpu.engine.direct.protobuf_values import Plain, struct, to_plain
from cloudgpu.engine.direct.register import Registered
from cloudgpu.engine.redaction import Redactor
from cloudgpu.engine.urn import STACK_TYPE, UrnParts, former_urns
from cloudgpu.errors import BadRequestError, CloudGpuError, UnsupportedError

_FEATURES: Final = (
    resource_pb2.RESOURCE_MONITOR_FEATURE_SECRETS,
    resource_pb2.RESOURCE_MONITOR_FEATURE_RESOURCE_REFERENCES,
    resource_pb2.RESOURCE_MONITOR_FEATURE_ALIAS_SPECS,
    resource_pb2.RESOURCE_MONITOR_FEATURE_DELETED_WITH,
    resource_pb2.RESOURCE_MONITOR_FEATURE_REPLACE_WITH,
    resource_pb2.RESOURCE_MONITOR_FEATURE_REPLACEMENT_TRIGGER,
)
"""Features to announce to the SDK. `diff.py` rejects some of them, with clearer errors than the SDK.

Hooks and transforms need a callback server. They are not announced, so the SDK rejects them.
"""

T = TypeVar("T")


class RegistrationHandler(Protocol):
    """A handler that applies registrations, or predicts their steps for a preview."""

    def settle(self, urn: str) -> Resource | None:
        """Return the recorded resource, or None if there is none.

        A handler that applies registrations first adopts or deletes what interrupted operations left.
        """

    def rename(self, old: str, urn: str, name: str) -> None:
        """Change the recorded URN and name of the resource `old`, which the program now declares under another name."""

    def carry_out(self, request: ResourceRequest, handler: Handler, present: Resource | None) -> Registered:
        """Create, update or replace the resource as requested."""


@dataclass(frozen=True)
class MonitorContext:
    """The context of a monitor: the stack, the handlers and the AWS clients."""

    stack: str
    project: str
    region: str
    handlers: Registry
    clients_for: Callable[[str], Clients]
    context: Callable[[str, str], HandlerContext]
    redactor: Redactor


class Monitor:
    """The `ResourceMonitor` service for one run of a program. The CamelCase methods are the gRPC methods."""

    def __init__(self, context: MonitorContext, registrations: RegistrationHandler) -> None:
        self._context = context
        self._registrations = registrations
        self._lock = threading.Lock()
        self._gate = Gate()
        self._scope = CancelScope()
        self._known: dict[str, Registered] = {}
        self._aliases: dict[str, tuple[str, ...]] = {}
        self.failure: BaseException | None = None
        self.program_failure: BaseException | None = None
        self.invoke_failures: dict[str, CloudGpuError] = {}
        self.registered: set[str] = set()
        self.outputs = Plain({})

    def close(self) -> None:
        """Prevent new operations from starting."""
        self._gate.close()

    def cancel(self) -> None:
        """Prevent new operations from starting, and end the waits of operations in progress."""
        self._gate.close()
        self._scope.cancel()

    def drain(self) -> None:
        """Wait until no operation is in progress."""
        self._gate.wait()

    def program_failed(self, failure: BaseException) -> None:
        """Prevent new operations from starting after the program itself failed. Later failures are ignored."""
        self._gate.close()
        with self._lock:
            if self.failure is None:
                self.program_failure = failure

    def _fail(self, failure: BaseException) -> None:
        self._gate.close()
        with self._lock:
            if self.failure is None and self.program_failure is None:
                self.failure = failure

    def GetDeploymentInfo(self, _request: object) -> resource_pb2.DeploymentInfo:  # noqa: N802
        """Return the features to announce to the SDK."""
        return resource_pb2.DeploymentInfo(supportedFeatures=_FEATURES)

    def SupportsFeature(self, _request: object) -> resource_pb2.SupportsFeatureResponse:  # noqa: N802
        """Return False. The SDK reads the features from `GetDeploymentInfo`, which supersedes this call."""
        return resource_pb2.SupportsFeatureResponse(hasSupport=False)

    def RegisterResource(  # noqa: N802
        self, request: resource_pb2.RegisterResourceRequest
    ) -> resource_pb2.RegisterResourceResponse:
        """Register a resource of the program."""
        return self._guarded(lambda: self._register(request))

    def ReadResource(self, request: resource_pb2.ReadResourceRequest) -> resource_pb2.ReadResourceResponse:  # noqa: N802
        """Read a resource that exists outside the stack (`SecurityGroup.get`)."""
        return self._guarded(lambda: self._read(request))

    def ExistsResource(self, request: resource_pb2.ExistsResourceRequest) -> resource_pb2.ExistsResourceResponse:  # noqa: N802
        """Check if a resource exists outside the stack."""
        return self._guarded(lambda: self._exists(request))

    def Invoke(self, request: resource_pb2.ResourceInvokeRequest) -> resource_pb2.ResourceInvokeResponse:  # noqa: N802
        """Call a provider function. As with the CLI, a failure is returned to the program, which may handle it."""
        try:
            return self._guarded(lambda: self._invoke(request), passing=CloudGpuError)
        except CloudGpuError as err:
            err.message = self._context.redactor.redact_text(err.message)
            self.invoke_failures[request.tok] = err
            failure = provider_pb2.CheckFailure(property="", reason=err.message)
            return resource_pb2.ResourceInvokeResponse(failures=[failure])

    def Call(self, request: resource_pb2.ResourceCallRequest) -> resource_pb2.ResourceInvokeResponse:  # noqa: N802
        """Reject a method call on a resource; no supported type has methods."""
        return self._guarded(lambda: _refuse(f"the method {request.tok}"))

    def RegisterResourceOutputs(self, request: resource_pb2.RegisterResourceOutputsRequest) -> empty_pb2.Empty:  # noqa: N802
        """Record the stack's outputs. Ignore the outputs of components."""
        if f"::{STACK_TYPE}::" in request.urn:
            self.outputs = to_plain(request.outputs)
        return empty_pb2.Empty()

    def RegisterPackage(self, request: resource_pb2.RegisterPackageRequest) -> resource_pb2.RegisterPackageResponse:  # noqa: N802
        """Reject a parameterized provider."""
        return self._guarded(lambda: _refuse(f"the parameterized package {request.name}"))

    def RegisterStackTransform(self, _request: object) -> empty_pb2.Empty:  # noqa: N802
        """Reject a stack transform."""
        return self._guarded(lambda: _refuse("transforms"))

    def RegisterStackInvokeTransform(self, _request: object) -> empty_pb2.Empty:  # noqa: N802
        """Reject an invoke transform."""
        return self._guarded(lambda: _refuse("invoke transforms"))

    def RegisterResourceHook(self, _request: object) -> empty_pb2.Empty:  # noqa: N802
        """Reject a hook."""
        return self._guarded(lambda: _refuse("resource hooks"))

    def RegisterErrorHook(self, _request: object) -> empty_pb2.Empty:  # noqa: N802
        """Reject an error hook."""
        return self._guarded(lambda: _refuse("error hooks"))

    def SignalAndWaitForShutdown(self, _request: object) -> empty_pb2.Empty:  # noqa: N802
        """Acknowledge that the program has finished."""
        return empty_pb2.Empty()

    def _guarded(self, work: Callable[[], T], passing: type[Exception] | tuple[()] = ()) -> T:
        with self._gate:
            return self._recorded(lambda: self._scope.run(work), passing)

    def _recorded(self, work: Callable[[], T], passing: type[Exception] | tuple[()]) -> T:
        try:
            return work()
        except passing:
            raise
        except Exception as err:
            self._fail(err)
            raise
        except BaseException as err:
            # the SDK would wait forever for the outputs of an interrupted thread
            self._fail(err)
            raise StoppedError from err

    def _register(self, request: resource_pb2.RegisterResourceRequest) -> resource_pb2.RegisterResourceResponse:
        place = self._place(request.parent, request.type, request.name)
        urn = place.urn
        if request.type == STACK_TYPE:
            return resource_pb2.RegisterResourceResponse(urn=urn)
        self._once(urn)
        options = read_options(request)
        self._aliases[urn] = former_urns(place, request.aliases, self._aliases.get(request.parent, ()))
        if not request.custom:
            return resource_pb2.RegisterResourceResponse(urn=urn)
        handler = self._context.handlers.handler(request.type)
        present = self._settle(urn, request.name)
        resource_request = self._resource_request(place, request, options, present)
        registered = self._registrations.carry_out(resource_request, handler, present)
        self._known[urn] = registered
        body = struct(registered.outputs, registered.secret_names)
        return resource_pb2.RegisterResourceResponse(urn=urn, id=registered.id, object=body)

    def _once(self, urn: str) -> None:
        with self._lock:
            if urn in self.registered:
                message = f"the program registers {urn} twice"
                raise BadRequestError(message, hint="give the two resources different names")
            self.registered.add(urn)

    def _settle(self, urn: str, name: str) -> Resource | None:
        present = self._registrations.settle(urn)
        for alias in self._aliases[urn]:
            if present is not None:
                break
            if self._registrations.settle(alias) is not None:
                self._registrations.rename(alias, urn, name)
                present = self._registrations.settle(urn)
        return present

    def _resource_request(
        self,
        place: UrnParts,
        request: resource_pb2.RegisterResourceRequest,
        options: Options,
        present: Resource | None,
    ) -> ResourceRequest:
        properties = to_plain(request.object)
        self._context.redactor.add_secrets(properties.values, properties.secret_paths)
        region = str(properties.values.pop("region", "") or self._context.region)
        checked = dict(self._context.handlers.handler(place.type).check(properties.values))
        masked = self._context.redactor.masked(checked, properties.secret_paths)
        if present is not None:
            checked, masked = apply_ignore_changes(checked, masked, present, options)
        digest = self._context.redactor.digest([place.type, region, masked])
        return ResourceRequest(place.urn, place.type, place.name, region, checked, masked, digest, options)

    def _read(self, request: resource_pb2.ReadResourceRequest) -> resource_pb2.ReadResourceResponse:
        reject_unsupported_version(request.type, request.version)
        if request.additionalSecretOutputs:
            _refuse(f"additional_secret_outputs, which {request.name!r} sets")
        handler = self._context.handlers.handler(request.type)
        context = self._context.context(self._context.region, "")
        physical = handler.read(context, request.id)
        if physical is None:
            message = f"{request.type} {request.id} does not exist"
            raise BadRequestError(message, hint=f"check the ID that the program passes to {request.name!r}")
        urn = self._place(request.parent, request.type, request.name).urn
        self._known[urn] = Registered(physical.id, physical.outputs)
        body = struct(physical.outputs)
        return resource_pb2.ReadResourceResponse(urn=urn, id=physical.id, properties=body)

    def _exists(self, request: resource_pb2.ExistsResourceRequest) -> resource_pb2.ExistsResourceResponse:
        reject_unsupported_version(request.type, request.version)
        handler = self._context.handlers.handler(request.type)
        context = self._context.context(self._context.region, "")
        return resource_pb2.ExistsResourceResponse(exists=handler.read(context, request.id) is not None)

    def _invoke(self, request: resource_pb2.ResourceInvokeRequest) -> resource_pb2.ResourceInvokeResponse:
        args = to_plain(request.args).values
        if request.tok == "pulumi:pulumi:getResource":
            return resource_pb2.ResourceInvokeResponse(**{"return": struct(self._get_resource(str(args["urn"])))})
        reject_unsupported_version(request.tok, request.version)
        region = str(args.pop("region", "") or self._context.region)
        result = self._context.handlers.invoke(request.tok, args, self._context.clients_for(region))
        return resource_pb2.ResourceInvokeResponse(**{"return": struct(result)})

    def _get_resource(self, urn: str) -> Mapping[str, Any]:
        if urn not in self._known:
            message = f"the program refers to {urn} before it registers that resource"
            raise BadRequestError(message, hint="register the resource first")
        return {"urn": urn, "id": self._known[urn].id, "state": dict(self._known[urn].outputs)}

    def _place(self, parent: str, type_token: str, name: str) -> UrnParts:
        return UrnParts(self._context.stack, self._context.project, parent, type_token, name)


def _refuse(what: str) -> NoReturn:
    message = f"the direct engine does not support {what}"
    raise UnsupportedError(message, hint="leave it out, or use the pulumi engine")
