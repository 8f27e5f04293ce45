"""Carrying out one registration at a time for `up`: whatever brings a resource to what the program wants."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloudgpu.aws.resources.base import Handler, HandlerContext, Physical
from cloudgpu.aws.session.errors import is_taken
from cloudgpu.engine.base import Operation
from cloudgpu.engine.direct.delete import end, end_one, raise_left
from cloudgpu.engine.direct.deployment import Deployment, hidden_outputs, is_definite, made_row
from cloudgpu.engine.direct.diff import Decision, Wanted, client_token, decide, deletes_first, refuse_protected
from cloudgpu.engine.direct.intent_search import adopt
from cloudgpu.engine.direct.journal_state import Intent, IntentOperation, Resource
from cloudgpu.engine.direct.protobuf_values import UNKNOWN, is_unknown
from cloudgpu.engine.redaction import is_masked
from cloudgpu.errors import BadRequestError, CloudGpuError, StateError


@dataclass(frozen=True)
class Registered:
    """The answer to a registration. `id` is empty while unknown."""

    id: str
    outputs: Mapping[str, Any]
    secret_names: frozenset[str] = frozenset()


class Registrar:
    """Makes resources what the program wants. One call a resource, from as many threads as the SDK likes."""

    def __init__(self, deployment: Deployment, cluster_token: str) -> None:
        self._deployment = deployment
        self._journal = deployment.journal
        self._cluster_token = cluster_token
        self._replaced: set[str] = set()
        self._lock = threading.Lock()

    def present(self, urn: str) -> Resource | None:
        """The resource as recorded, after looking for what a killed run may have made of it.

        Raises:
            CloudGpuError: The cloud cannot be asked.
        """
        with self._journal.lock:
            unanswered = self._journal.state.open_creates(urn)
        for intent in unanswered:
            adopt(self._deployment, intent)
        with self._journal.lock:
            present = self._journal.state.live.get(urn)
        if present is not None and present.deleting:
            end_one(self._deployment, present)
            return None
        return present

    def rename(self, old: str, urn: str, name: str) -> None:
        """An alias: the resource known as `old` is this one now."""
        self._journal.add({"row": "renamed", "from": old, "to": urn, "name": name})

    def carry_out(self, wanted: Wanted, handler: Handler, present: Resource | None) -> Registered:
        """Create, update, replace, or leave as it is.

        Raises:
            CloudGpuError: It could not be done; what was made stands in the journal.
        """
        if is_unknown(wanted.inputs):
            message = f"{wanted.type} {wanted.name!r}: an input is still unknown"
            raise BadRequestError(message, hint="this is a fault of the program: outputs are known during `up`")
        with self._lock:
            replaced = frozenset(self._replaced)
        decision = decide(wanted, present, handler, replaced)
        if present is None:
            return self._create("create", wanted, handler)
        if decision.operation == "replace":
            return self._replace(wanted, handler, present, decision)
        if decision.operation == "update":
            return self._update(wanted, handler, present)
        return self._same(wanted, handler, present)

    def _same(self, wanted: Wanted, handler: Handler, present: Resource) -> Registered:
        if present.meta != wanted.meta:
            self._journal.add({"row": "meta", "urn": wanted.urn, "meta": wanted.meta.as_row()})
        self._deployment.report.count("same")
        names = _marked_names(present.outputs)
        outputs = {
            name: wanted.inputs[name] if wanted.masked.get(name) == value and name in wanted.inputs else value
            for name, value in present.outputs.items()
        }
        if is_masked(outputs):
            outputs = self._read(wanted, handler, present)
        return Registered(present.id, outputs, names)

    def _read(self, wanted: Wanted, handler: Handler, present: Resource) -> dict[str, Any]:
        """The journal holds no secrets, so outputs that are secret are asked for again."""
        context = self._deployment.context(present.region, present.token)
        physical = handler.read(context, present.id)
        if physical is None:
            message = f"{wanted.type} {wanted.name!r} ({present.id}) does not exist any more"
            raise StateError(message, hint="run `cloudgpu status --refresh`, then `cloudgpu up` again")
        return dict(physical.outputs)

    def _create(self, operation: Operation, wanted: Wanted, handler: Handler) -> Registered:
        self._clear_remains(wanted.urn)
        intent = self._reusable(wanted) or self._begin("create", wanted)
        deployment = self._deployment
        clock = deployment.watched(operation, wanted, wanted.options.create_timeout_s)
        context = deployment.context(wanted.region, intent.token, clock)
        deployment.report.emit("start", operation, wanted)
        try:
            physical = _made(handler, context, wanted)
        except CloudGpuError as err:
            self._not_created(intent, handler, context, err)
            deployment.failed(operation, wanted, err)
            raise
        self._journal.add(made_row(deployment.redactor, intent, physical))
        deployment.report.emit("done", operation, wanted, detail=physical.id, seconds=clock.elapsed())
        return self._registered(wanted, physical)

    def _not_created(self, intent: Intent, handler: Handler, context: HandlerContext, err: CloudGpuError) -> None:
        """A clear no closes the intent, once nothing is found that was made on the way to it."""
        if not is_definite(err):
            return
        try:
            remains = handler.find(context, intent.inputs)
        except CloudGpuError:
            return  # the intent stays open, so that somebody looks again
        if remains is None:
            self._journal.add({"row": "failed", "seq": intent.seq, "error": type(err).__name__})
        else:
            self._journal.add(made_row(self._deployment.redactor, intent, remains, tainted=True))

    def _update(self, wanted: Wanted, handler: Handler, present: Resource) -> Registered:
        deployment = self._deployment
        clock = deployment.watched("update", wanted, wanted.options.update_timeout_s)
        context = deployment.context(wanted.region, present.token, clock)
        old = self._as_it_is(handler, context, present) if present.unsettled else present.inputs
        intent = self._begin("update", wanted, present)
        deployment.report.emit("start", "update", wanted, detail=present.id)
        try:
            physical = handler.update(context, present.id, old, wanted.inputs)
        except CloudGpuError as err:
            deployment.failed("update", wanted, err)
            raise
        self._journal.add(made_row(deployment.redactor, intent, physical))
        deployment.report.emit("done", "update", wanted, detail=physical.id, seconds=clock.elapsed())
        return self._registered(wanted, physical)

    def _as_it_is(self, handler: Handler, context: HandlerContext, present: Resource) -> Mapping[str, Any]:
        """Old inputs after an update that nobody saw the end of: what the cloud shows of them now."""
        physical = handler.read(context, present.id)
        actual = {} if physical is None else physical.outputs
        return {name: actual.get(name, value) for name, value in present.inputs.items()}

    def _replace(self, wanted: Wanted, handler: Handler, present: Resource, decision: Decision) -> Registered:
        refuse_protected(present, f"replaced, because {', '.join(decision.changed)} changed")
        with self._lock:
            self._replaced.add(wanted.urn)
        if deletes_first(wanted, handler):
            raise_left(self._deployment, end(self._deployment, self._with_dependants(present)))
        return self._create("replace", wanted, handler)

    def _with_dependants(self, present: Resource) -> list[Resource]:
        """The resource, and those that cannot stay when what they were given of it changes."""
        with self._journal.lock:
            live = dict(self._journal.state.live)
        doomed = {present.urn: present}
        grown = True
        while grown:
            found = {
                urn: other
                for urn, other in live.items()
                if urn not in doomed and self._falls_with(other, frozenset(doomed))
            }
            doomed |= found
            grown = bool(found)
        return list(doomed.values())

    def _falls_with(self, other: Resource, doomed: frozenset[str]) -> bool:
        touched = [name for name, urns in other.meta.property_dependencies.items() if doomed.intersection(urns)]
        if not touched:
            return False
        handler = self._deployment.handlers.handler(other.type)
        return bool(handler.diff(other.inputs, {**other.inputs, **dict.fromkeys(touched, UNKNOWN)}).replace)

    def _clear_remains(self, urn: str) -> None:
        """What an earlier failure left half-made goes first: its name may be in the way."""
        with self._journal.lock:
            remains = [old for old in self._journal.state.condemned if old.urn == urn and old.urn not in self._replaced]
        for resource in remains:
            end_one(self._deployment, resource)

    def _reusable(self, wanted: Wanted) -> Intent | None:
        """An unanswered intent for exactly this: sending its token again cannot make a second one."""
        with self._journal.lock:
            unanswered = self._journal.state.open_creates(wanted.urn)
        return next((intent for intent in unanswered if intent.digest == wanted.digest), None)

    def _begin(self, operation: IntentOperation, wanted: Wanted, present: Resource | None = None) -> Intent:
        with self._journal.lock:
            attempt = self._journal.state.attempts.get(wanted.urn, 0)
        token = client_token(self._cluster_token, wanted.urn, wanted.digest, attempt)
        intent = Intent(
            seq=self._journal.next_seq(),
            operation=operation,
            urn=wanted.urn,
            type=wanted.type,
            name=wanted.name,
            region=wanted.region,
            token=present.token if present else token,
            digest=wanted.digest,
            inputs=wanted.masked,
            meta=wanted.meta,
            at=self._journal.now(),
            id=present.id if present else "",
        )
        self._journal.add(intent.as_row())
        return intent

    def _registered(self, wanted: Wanted, physical: Physical) -> Registered:
        masked = hidden_outputs(self._deployment.redactor, wanted.masked, wanted.meta, physical.outputs)
        return Registered(physical.id, physical.outputs, _marked_names(masked))


def _made(handler: Handler, context: HandlerContext, wanted: Wanted) -> Physical:
    """Create it. That its name is taken may be our own doing: a call whose answer was lost has been sent again.

    Raises:
        CloudGpuError: It could not be made; a taken name is somebody else's.
    """
    try:
        return handler.create(context, wanted.inputs)
    except CloudGpuError as err:
        found = handler.find(context, wanted.inputs) if is_taken(err) else None
        if found is None:
            raise
        return found


def _marked_names(masked: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(name for name, value in masked.items() if is_masked(value))
