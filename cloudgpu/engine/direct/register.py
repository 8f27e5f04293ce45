"""Apply resource registrations during `up`, and repair drift: create, update, replace or keep each resource."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from cloudgpu.aws.resources.handler import ExistingResource, Handler, HandlerContext, Properties
from cloudgpu.aws.session.errors import is_taken
from cloudgpu.engine.base import Operation
from cloudgpu.engine.direct.delete import delete_resource, delete_resources, raise_if_undeleted
from cloudgpu.engine.direct.deployment import Deployment, Registry, completion_row, is_definite_failure, mask_outputs
from cloudgpu.engine.direct.intent_search import adopt
from cloudgpu.engine.direct.journal_state import Intent, IntentOperation, Resource
from cloudgpu.engine.direct.operation_choice import (
    Decision,
    ResourceRequest,
    client_token,
    decide_operation,
    deletes_first,
    reject_protected,
)
from cloudgpu.engine.direct.protobuf_values import UNKNOWN, is_unknown
from cloudgpu.engine.redaction import is_masked
from cloudgpu.errors import BadRequestError, CloudGpuError, StateError


@runtime_checkable
class DriftHandler(Protocol):
    """A handler that can detect drift."""

    def drift(self, ctx: HandlerContext, physical_id: str, inputs: Properties) -> tuple[str, ...]:
        """Return one line for each difference between the actual resource and these inputs."""


@dataclass(frozen=True)
class DriftCheckedResource:
    """A recorded resource that is checked for drift."""

    type: str
    name: str
    id: str
    region: str
    token: str
    inputs: Properties


def find_drift(
    recorded: Iterable[DriftCheckedResource], handlers: Registry, context: Callable[[str, str], HandlerContext]
) -> tuple[str, ...]:
    """Return one line for each difference between a security group and its recorded state. Change nothing."""
    return tuple(line for _, _, lines in _drifted(recorded, handlers, context) for line in lines)


def repair_drift(
    recorded: Iterable[DriftCheckedResource], handlers: Registry, context: Callable[[str, str], HandlerContext]
) -> tuple[str, ...]:
    """Revert every difference from the recorded state, which does not change. Return one line for each difference."""
    repaired: list[str] = []
    for resource, handler, lines in _drifted(recorded, handlers, context):
        ctx = context(resource.region, resource.token)
        handler.update(ctx, resource.id, resource.inputs, resource.inputs)
        repaired += lines
    return tuple(repaired)


def _drifted(
    recorded: Iterable[DriftCheckedResource], handlers: Registry, context: Callable[[str, str], HandlerContext]
) -> Iterator[tuple[DriftCheckedResource, Handler, tuple[str, ...]]]:
    for resource in recorded:
        handler = handlers.handler(resource.type)
        if isinstance(handler, DriftHandler):
            lines = handler.drift(context(resource.region, resource.token), resource.id, resource.inputs)
            if lines:
                yield resource, handler, lines


@dataclass(frozen=True)
class Registered:
    """The result of a registration. `id` is empty in previews of resources that `up` would create."""

    id: str
    outputs: Mapping[str, Any]
    secret_names: frozenset[str] = frozenset()


class Registrar:
    """A registration handler that applies registrations, one call per resource. Thread-safe."""

    def __init__(self, deployment: Deployment, cluster_token: str) -> None:
        self._deployment = deployment
        self._journal = deployment.journal
        self._cluster_token = cluster_token
        self._replaced: set[str] = set()
        self._lock = threading.Lock()

    def settle(self, urn: str) -> Resource | None:
        """Settle interrupted operations, then return the recorded resource, or None if there is none.

        If an earlier command was killed, a resource that it may have created is adopted, and a deletion that it started
        is finished.
        """
        with self._journal.lock:
            unanswered = self._journal.state.unanswered_creates_of(urn)
        for intent in unanswered:
            adopt(self._deployment, intent)
        with self._journal.lock:
            present = self._journal.state.live.get(urn)
        if present is not None and present.deleting:
            delete_resource(self._deployment, present)
            return None
        return present

    def rename(self, old: str, urn: str, name: str) -> None:
        """Record the new URN and name of the resource `old`, which the program now declares under another name."""
        self._journal.add({"row": "renamed", "from": old, "to": urn, "name": name})

    def carry_out(self, request: ResourceRequest, handler: Handler, present: Resource | None) -> Registered:
        """Create, update or replace the resource, or keep it."""
        if is_unknown(request.inputs):
            message = f"{request.type} {request.name!r}: the value of an input is unknown"
            raise BadRequestError(message, hint="correct the program: during `up`, it must not pass placeholder values")
        decision = decide_operation(request, present, handler)
        if present is None:
            return self._create("create", request, handler)
        if decision.operation == "replace":
            return self._replace(request, handler, present, decision)
        if decision.operation == "update":
            return self._update(request, handler, present)
        return self._same(request, handler, present)

    def _same(self, request: ResourceRequest, handler: Handler, present: Resource) -> Registered:
        if present.meta != request.options.meta:
            self._journal.add({"row": "meta", "urn": request.urn, "meta": request.options.meta.as_row()})
        self._deployment.report.count("same")
        names = _marked_names(present.outputs)
        outputs = {
            name: request.inputs[name] if request.masked.get(name) == value and name in request.inputs else value
            for name, value in present.outputs.items()
        }
        if is_masked(outputs):
            outputs = self._read(request, handler, present)
        return Registered(present.id, outputs, names)

    def _read(self, request: ResourceRequest, handler: Handler, present: Resource) -> dict[str, Any]:
        """Read the outputs from the cloud, because the journal does not contain secrets."""
        context = self._deployment.context(present.region, present.token)
        physical = handler.read(context, present.id)
        if physical is None:
            message = f"{request.type} {request.name!r} ({present.id}) no longer exists"
            raise StateError(message, hint="run `cloudgpu status --refresh`, then `cloudgpu up` again")
        return dict(physical.outputs)

    def _create(self, operation: Operation, request: ResourceRequest, handler: Handler) -> Registered:
        self._delete_partial(request.urn)
        intent = self._reusable(request) or self._begin("create", request)
        deployment = self._deployment
        clock = deployment.watched_clock(operation, request)
        context = deployment.context(request.region, intent.token, clock)
        deployment.report.emit("start", operation, request)
        try:
            physical = _create_or_adopt(handler, context, request)
        except CloudGpuError as err:
            self._not_created(intent, handler, context, err)
            deployment.failed(operation, request, err)
            raise
        self._journal.add(completion_row(deployment.redactor, intent, physical))
        deployment.report.emit("done", operation, request, detail=physical.id, seconds=clock.elapsed())
        return self._registered(request, physical)

    def _not_created(self, intent: Intent, handler: Handler, context: HandlerContext, err: CloudGpuError) -> None:
        """After a rejected create call, record the failure, or the partially created resource as tainted."""
        if not is_definite_failure(err):
            return
        try:
            partial = handler.find(context, intent.inputs)
        except CloudGpuError:
            return  # the intent stays open, so that the next command searches again
        if partial is None:
            self._journal.add({"row": "failed", "seq": intent.seq, "error": type(err).__name__})
        else:
            self._journal.add(completion_row(self._deployment.redactor, intent, partial, tainted=True))

    def _update(self, request: ResourceRequest, handler: Handler, present: Resource) -> Registered:
        deployment = self._deployment
        clock = deployment.watched_clock("update", request)
        context = deployment.context(request.region, present.token, clock)
        old = self._actual_inputs(handler, context, present) if present.unsettled else present.inputs
        intent = self._begin("update", request, present)
        deployment.report.emit("start", "update", request, detail=present.id)
        try:
            physical = handler.update(context, present.id, old, request.inputs)
        except CloudGpuError as err:
            deployment.failed("update", request, err)
            raise
        self._journal.add(completion_row(deployment.redactor, intent, physical))
        deployment.report.emit("done", "update", request, detail=physical.id, seconds=clock.elapsed())
        return self._registered(request, physical)

    def _actual_inputs(self, handler: Handler, context: HandlerContext, present: Resource) -> Mapping[str, Any]:
        """Return the inputs with the values that the cloud reports, after an update whose outcome is unknown."""
        physical = handler.read(context, present.id)
        actual = {} if physical is None else physical.outputs
        return {name: actual.get(name, value) for name, value in present.inputs.items()}

    def _replace(self, request: ResourceRequest, handler: Handler, present: Resource, decision: Decision) -> Registered:
        reject_protected(present, f"replaced, because {', '.join(decision.changed)} changed")
        with self._lock:
            self._replaced.add(request.urn)
        if deletes_first(request, handler):
            raise_if_undeleted(self._deployment, delete_resources(self._deployment, self._with_dependents(present)))
        return self._create("replace", request, handler)

    def _with_dependents(self, present: Resource) -> list[Resource]:
        """Return the resource and the resources that must be replaced when its outputs change."""
        with self._journal.lock:
            live = dict(self._journal.state.live)
        affected = {present.urn: present}
        grown = True
        while grown:
            dependents = {
                urn: other
                for urn, other in live.items()
                if urn not in affected and self._is_replaced_with(other, frozenset(affected))
            }
            affected |= dependents
            grown = bool(dependents)
        return list(affected.values())

    def _is_replaced_with(self, other: Resource, affected: frozenset[str]) -> bool:
        changed = [name for name, urns in other.meta.property_dependencies.items() if affected.intersection(urns)]
        if not changed:
            return False
        handler = self._deployment.handlers.handler(other.type)
        return bool(handler.diff(other.inputs, {**other.inputs, **dict.fromkeys(changed, UNKNOWN)}).replace)

    def _delete_partial(self, urn: str) -> None:
        """Delete partially created resources of earlier attempts, whose names may conflict with the new resource."""
        with self._journal.lock:
            partial = [old for old in self._journal.state.condemned if old.urn == urn and old.urn not in self._replaced]
        for resource in partial:
            delete_resource(self._deployment, resource)

    def _reusable(self, request: ResourceRequest) -> Intent | None:
        """Return an interrupted create call with the same inputs. Its token makes the retry idempotent."""
        with self._journal.lock:
            unanswered = self._journal.state.unanswered_creates_of(request.urn)
        return next((intent for intent in unanswered if intent.digest == request.digest), None)

    def _begin(self, operation: IntentOperation, request: ResourceRequest, present: Resource | None = None) -> Intent:
        with self._journal.lock:
            attempt = self._journal.state.attempts.get(request.urn, 0)
        token = client_token(self._cluster_token, request.urn, request.digest, attempt)
        intent = Intent(
            seq=self._journal.next_seq(),
            operation=operation,
            urn=request.urn,
            type=request.type,
            name=request.name,
            region=request.region,
            token=present.token if present else token,
            digest=request.digest,
            inputs=request.masked,
            meta=request.options.meta,
            at=self._journal.now(),
            id=present.id if present else "",
        )
        self._journal.add(intent.as_row())
        return intent

    def _registered(self, request: ResourceRequest, physical: ExistingResource) -> Registered:
        masked = mask_outputs(self._deployment.redactor, request.masked, physical.outputs)
        return Registered(physical.id, physical.outputs, _marked_names(masked))


def _create_or_adopt(handler: Handler, context: HandlerContext, request: ResourceRequest) -> ExistingResource:
    """Create the resource. If its name is taken, look for a resource created by an earlier attempt of this call."""
    try:
        return handler.create(context, request.inputs)
    except CloudGpuError as err:
        physical = handler.find(context, request.inputs) if is_taken(err) else None
        if physical is None:
            raise
        return physical


def _marked_names(masked: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(name for name, value in masked.items() if is_masked(value))
