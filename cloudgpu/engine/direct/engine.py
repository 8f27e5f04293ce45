"""The direct engine: runs or previews a Pulumi program in this process, with a journal instead of Pulumi state.

The route from `DirectEngine.up` to a call of AWS leaves what an editor can follow. `language_host.run_program` executes
`infra/__main__.py`. Pulumi's SDK registers its resources (`infra/gpu_cluster/`) at `resource_monitor.Monitor`, whose
`RegisterResource` passes each to `register.Registrar`. The handler of a type, such as `aws:ec2/fleet:Fleet`, is in the
table of `cloudgpu/aws/resources/registry.py`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from cloudgpu.aws.resources.handler import Handler, HandlerContext
from cloudgpu.aws.session.session import Clients
from cloudgpu.clock import Clock
from cloudgpu.engine.base import AppliedStack, Event, OnEvent, PreviewStep, Stack
from cloudgpu.engine.direct.delete import (
    adopt_all,
    delete_all_resources,
    delete_resources,
    raise_if_undeleted,
    run_in_dependency_order,
)
from cloudgpu.engine.direct.deployment import Delays, Deployment, DeploymentReport, Registry, delays_at, mask_outputs
from cloudgpu.engine.direct.intent_search import adopt, existing_resources, unanswered_creates
from cloudgpu.engine.direct.journal import Journal, JournalAccount, load
from cloudgpu.engine.direct.journal_state import Resource, State
from cloudgpu.engine.direct.language_host import ProgramRun, Project, read_project, run_program
from cloudgpu.engine.direct.operation_choice import ResourceRequest, decide_operation
from cloudgpu.engine.direct.register import DriftCheckedResource, Registered, Registrar, find_drift, repair_drift
from cloudgpu.engine.direct.resource_monitor import Monitor, MonitorContext, RegistrationHandler
from cloudgpu.engine.redaction import Redactor, is_masked, redact_for_display
from cloudgpu.errors import CloudGpuError

__all__ = ["DirectEngine", "JournalAccount"]
_NAMESPACE: Final = "cloudgpu"


class PreviewHandler:
    """A registration handler that predicts each step from the journal. Outputs that `up` would change are omitted."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.steps: list[PreviewStep] = []

    def settle(self, urn: str) -> Resource | None:
        """Return the recorded resource, or None if there is none or its deletion has started. Change nothing."""
        present = self._state.live.get(urn)
        return None if present is None or present.deleting else present

    def rename(self, old: str, urn: str, name: str) -> None:
        """Change the URN and name of the resource `old`, which the program now declares under another name."""
        self._state.apply({"row": "renamed", "from": old, "to": urn, "name": name})

    def carry_out(self, request: ResourceRequest, handler: Handler, present: Resource | None) -> Registered:
        """Add the step for a registration to `steps`, and return the predicted outputs."""
        decision = decide_operation(request, present, handler)
        operation = decision.operation
        if present is None and self._state.unanswered_creates_of(request.urn):
            operation = "adopt"  # if the search finds no resource, `up` creates one with the same token
        self.steps.append(PreviewStep(operation, request.urn, request.type, request.name, decision.changed))
        if present is None or operation == "replace":
            return Registered("", dict(request.inputs))
        outputs = present.outputs if operation == "same" else _unless(present.outputs, decision.changed)
        known = {name: value for name, value in outputs.items() if not is_masked(value)}
        return Registered(present.id, {**known, **request.inputs})

    def deletions(self, registered: frozenset[str]) -> list[PreviewStep]:
        """Return the steps for resources removed from the program and for replaced resources not yet deleted."""
        removed = [resource for urn, resource in self._state.live.items() if urn not in registered]
        return [
            PreviewStep("delete", resource.urn, resource.type, resource.name)
            for resource in reversed([*removed, *self._state.condemned])
        ]


def _unless(outputs: Mapping[str, Any], changed: tuple[str, ...]) -> dict[str, Any]:
    """Return the outputs that an update of these properties cannot change."""
    return {name: value for name, value in outputs.items() if name not in changed}


class DirectEngine:
    """The direct engine, an implementation of `Engine`. One object can process several stacks in sequence."""

    def __init__(
        self,
        *,
        clients_for: Callable[[str], Clients],
        handlers: Registry,
        tags: Mapping[str, str],
        identity: JournalAccount,
        clock: Clock,
        delays: Delays | None = None,
    ) -> None:
        self._clients_for = clients_for
        self._handlers = handlers
        self._tags = dict(tags)
        self._identity = identity
        self._clock = clock
        self._delays = delays or delays_of(identity)

    def preview(self, stack: Stack) -> tuple[PreviewStep, ...]:
        """Return the steps that `up` would perform, without changing anything."""
        loaded = load(stack.journal, self._identity)
        redactor = _redactor(stack, loaded.salt)
        forecast = PreviewHandler(loaded.state)
        monitor = self._run(stack, redactor, forecast, preview=True, on_log=lambda _severity, _message: None)
        return (*forecast.steps, *forecast.deletions(frozenset(monitor.registered)))

    def up(self, stack: Stack, on_event: OnEvent) -> AppliedStack:
        """Make the stack match its program, then delete the resources that are no longer in the program.

        Secret outputs are returned as `[secret]`.
        """
        with Journal(stack.journal, self._identity, self._clock) as journal:
            deployment = self._deployment(stack, journal, on_event)
            registrar = Registrar(deployment, stack.config.get("token", stack.name))
            monitor = self._run(stack, deployment.redactor, registrar, preview=False, on_log=_logger(stack, on_event))
            self._record_outputs(journal, deployment.redactor, monitor)
            self._delete_leftovers(deployment, monitor)
            return _applied(journal.state, deployment.report)

    def drift(self, stack: Stack) -> tuple[str, ...]:
        """Describe the security group changes made outside the program."""
        return find_drift(self._guarded(stack), self._handlers, self._context)

    def repair_drift(self, stack: Stack) -> tuple[str, ...]:
        """Revert the security group changes made outside the program; return their descriptions."""
        return repair_drift(self._guarded(stack), self._handlers, self._context)

    def refresh(self, stack: Stack) -> AppliedStack:
        """Re-read every resource, and drop those that no longer exist from the state."""
        with Journal(stack.journal, self._identity, self._clock) as journal:
            deployment = self._deployment(stack, journal, _ignore)
            for intent in unanswered_creates(deployment):
                adopt(deployment, intent)
            resources = {(resource.urn, resource.id): resource for resource in existing_resources(deployment)}
            failures = run_in_dependency_order(
                {key: set() for key in resources}, lambda key: _reread(deployment, resources[key])
            )
            for failure in failures.values():
                raise failure
            return _applied(journal.state, deployment.report)

    def destroy(self, stack: Stack, on_event: OnEvent) -> None:
        """Delete every resource in the journal and every resource that an interrupted call may have created."""
        if not stack.journal.exists():
            return
        with Journal(stack.journal, self._identity, self._clock, required=False) as journal:
            delete_all_resources(self._deployment(stack, journal, on_event))
            if journal.state.outputs:
                journal.add({"row": "outputs", "values": {}})

    def close(self, stack: Stack) -> None:
        """Record that a tag search found no resources, so that later commands do not search again."""
        if not stack.journal.exists():
            return
        with Journal(stack.journal, self._identity, self._clock) as journal:
            raise_if_undeleted(
                self._deployment(stack, journal, _ignore), [_line(resource) for resource in journal.state.everything()]
            )
            if not journal.state.closed:
                journal.add({"row": "closed", "at": journal.now()})

    def recorded(self, stack: Stack) -> AppliedStack:
        """Return the stack as recorded in its journal, without calling the cloud."""
        return _applied(load(stack.journal, self._identity).state, DeploymentReport(_ignore))

    def _guarded(self, stack: Stack) -> list[DriftCheckedResource]:
        live = load(stack.journal, self._identity).state.live.values()
        return [DriftCheckedResource(row.type, row.name, row.id, row.region, row.token, row.inputs) for row in live]

    def _run(
        self,
        stack: Stack,
        redactor: Redactor,
        registrations: RegistrationHandler,
        *,
        preview: bool,
        on_log: Callable[[str, str], None],
    ) -> Monitor:
        project = read_project(stack.program)
        context = MonitorContext(
            stack=stack.name,
            project=project.name,
            region=stack.region,
            handlers=self._handlers,
            clients_for=self._clients_for,
            context=self._context,
            redactor=redactor,
        )
        monitor = Monitor(context, registrations)
        secret_keys = frozenset(f"{_NAMESPACE}:{key}" for key in stack.secrets)
        run = ProgramRun(project, stack.name, _config(stack, project), secret_keys, preview, on_log)
        try:
            run_program(run, monitor)
        except CloudGpuError as err:
            err.message = redactor.redact_text(err.message)
            err.args = (err.message,)
            raise
        return monitor

    def _deployment(self, stack: Stack, journal: Journal, on_event: OnEvent) -> Deployment:
        return Deployment(
            stack=stack,
            journal=journal,
            handlers=self._handlers,
            clients_for=self._clients_for,
            tags=self._tags,
            clock=self._clock,
            redactor=_redactor(stack, journal.salt),
            report=DeploymentReport(on_event),
            delays=self._delays,
        )

    def _context(self, region: str, token: str) -> HandlerContext:
        return HandlerContext(self._clients_for(region), self._clock, token, self._tags)

    def _record_outputs(self, journal: Journal, redactor: Redactor, monitor: Monitor) -> None:
        outputs = redactor.masked(monitor.outputs.values, monitor.outputs.secret_paths)
        if outputs != journal.state.outputs:
            journal.add({"row": "outputs", "values": outputs})

    def _delete_leftovers(self, deployment: Deployment, monitor: Monitor) -> None:
        """Delete replaced resources, resources removed from the program, and results of interrupted calls."""
        left = adopt_all(deployment, unanswered_creates(deployment))
        with deployment.journal.lock:
            state = deployment.journal.state
            removed = [resource for urn, resource in state.live.items() if urn not in monitor.registered]
            leftovers = [*removed, *state.condemned]
        raise_if_undeleted(deployment, left + delete_resources(deployment, leftovers))


def delays_of(identity: JournalAccount) -> Delays:
    """Return the delays to assume for this account's endpoint."""
    return delays_at(identity.endpoint)


def _redactor(stack: Stack, salt: str) -> Redactor:
    return Redactor(salt, (stack.config[key] for key in stack.secrets if key in stack.config))


def _config(stack: Stack, project: Project) -> dict[str, str]:
    own = {f"{_NAMESPACE}:{key}": value for key, value in stack.config.items()}
    return {**project.defaults, "aws:region": stack.region, **own}


def _logger(stack: Stack, on_event: OnEvent) -> Callable[[str, str], None]:
    def log(severity: str, message: str) -> None:
        on_event(Event("waiting", "read", stack.name, "pulumi:log", severity, message))

    return log


def _applied(state: State, report: DeploymentReport) -> AppliedStack:
    resources = tuple(resource.shown() for resource in state.live.values())
    return AppliedStack(redact_for_display(state.outputs), resources, dict(report.changes))


def _reread(deployment: Deployment, resource: Resource) -> None:
    handler = deployment.handlers.handler(resource.type)
    physical = handler.read(deployment.context(resource.region, resource.token), resource.id)
    if physical is None:
        deployment.journal.add({"row": "gone", "urn": resource.urn, "id": resource.id})
        deployment.report.count("delete")
        return
    outputs = mask_outputs(deployment.redactor, resource.inputs, physical.outputs)
    if outputs != resource.outputs:
        deployment.journal.add({"row": "read", "urn": resource.urn, "id": resource.id, "outputs": outputs})
    deployment.report.count("read")


def _line(resource: Resource) -> str:
    return f"{resource.type} {resource.name!r} ({resource.id})"


def _ignore(_event: Event) -> None:
    return None
