"""RunInstances, and the calls that stop, start, reboot or terminate instances."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

from moto.core.utils import camelcase_to_underscores
from moto.ec2.exceptions import DryRunClientError

from cloudgpu.rehearsal.aws_api.launch.capacity import launchable_count
from cloudgpu.rehearsal.aws_api.launch.launch import Origin, launch
from cloudgpu.rehearsal.aws_api.launch.request import merge_template
from cloudgpu.rehearsal.aws_api.launch.validation import validate_launch
from cloudgpu.rehearsal.aws_api.rules import AwsError, ParsedRequest, rule

_DEFAULT_TYPE = "m1.small"
"""Type of an instance for which neither the request nor its template names one (EC2 API reference, RunInstances)."""
STATE_CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}


@rule("RunInstances")
def run_instances(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's reservation
    """Launch up to MaxCount instances in one zone; launch none if there is capacity for fewer than MinCount."""
    minimum, maximum = _counts(call)
    merged = merge_template(call, call.params, call.params.get("LaunchTemplate"))
    request = validate_launch(call, replace(merged, instance_type=merged.instance_type or _DEFAULT_TYPE))
    room = launchable_count(call, request, maximum)
    if room.why is not None and room.count < minimum:
        raise room.why
    if call.params.get("DryRun"):
        raise DryRunClientError
    return launch(call, request, room.count, Origin(client_token=str(call.params.get("ClientToken") or "")))


def _counts(call: ParsedRequest) -> tuple[int, int]:
    minimum, maximum = (int(call.params.get(name) or 0) for name in ("MinCount", "MaxCount"))
    if minimum < 1 or maximum < 1:
        raise AwsError("InvalidParameterValue", "MinCount and MaxCount must be at least 1.")
    if minimum > maximum:
        raise AwsError("InvalidParameterValue", f"MinCount {minimum} must not be greater than MaxCount {maximum}.")
    return minimum, maximum


@rule("TerminateInstances")
def terminate(call: ParsedRequest) -> dict[str, Any]:
    """Return `shutting-down` immediately; nodes are stopped in the background. Idempotent."""
    instances = find(call, call.texts("InstanceIds"))
    for instance in instances:
        # AWS protects an instance whose stop is disabled from termination, too, and says "terminated" in both messages.
        for attribute in ("disableApiTermination", "disableApiStop"):
            _require_unprotected(instance, attribute, "terminated")
    before = {instance.id: str(instance.state) for instance in instances}
    mark_shutting_down(instances, call.world.clock.now())
    start_termination(call, [instance for instance in instances if instance.state == "shutting-down"])
    rows = [_state_change(instance, before[instance.id]) for instance in instances]
    return {"TerminatingInstances": rows}


def mark_shutting_down(instances: Iterable[Any], at: datetime) -> None:
    """Mark instances as shutting down at an API caller's request, with the transition reason that AWS sets."""
    for instance in instances:
        if instance.state not in ("shutting-down", "terminated"):
            set_state(instance, "shutting-down")
            instance._reason = transition_reason(at)


def transition_reason(at: datetime) -> str:
    """Return the StateTransitionReason of an instance that was stopped or terminated through the API."""
    return f"User initiated ({at:%Y-%m-%d %H:%M:%S} GMT)"


def start_termination(call: ParsedRequest, instances: list[Any]) -> None:
    """Stop the nodes of instances that are shutting down; a fault script can delay a termination, as happens on AWS."""
    for instance in instances:
        record = call.records.nodes[instance.id]
        if record.lingers is None:
            record.lingers = call.world.behaviour.now.terminate_looks
            if record.lingers:
                call.world.behaviour.count_affected_call()
    call.world.keeper.end(call.region, [instance.id for instance in instances])


@rule("StopInstances")
def stop(call: ParsedRequest) -> dict[str, Any]:
    """Stop instances: power off their nodes and keep the disks."""
    instances = find(call, call.texts("InstanceIds"))
    for instance in instances:
        _require_unprotected(instance, "disableApiStop", "stopped")
    _require(instances, ("pending", "running", "stopping", "stopped"))
    for instance in instances:
        if instance.state in ("pending", "running"):
            instance._reason = transition_reason(call.world.clock.now())
    rows = [_transition(instance, "stopping", unless=("stopped",)) for instance in instances]
    call.world.keeper.end(call.region, [instance.id for instance in instances if instance.state == "stopping"])
    return {"StoppingInstances": rows}


@rule("StartInstances")
def start(call: ParsedRequest) -> dict[str, Any]:
    """Start stopped instances."""
    instances = find(call, call.texts("InstanceIds"))
    _require(instances, ("stopped", "pending", "running"))
    starting = [instance for instance in instances if instance.state == "stopped"]
    for instance in starting:
        instance._reason = ""
    rows = [_transition(instance, "pending", unless=("pending", "running")) for instance in instances]
    call.world.keeper.boot(call.region, [instance.id for instance in starting])
    return {"StartingInstances": rows}


@rule("RebootInstances")
def reboot(call: ParsedRequest) -> dict[str, Any]:
    """Reboot the nodes of running instances; boot hooks run again."""
    instances = find(call, call.texts("InstanceIds"))
    _require(instances, ("running",))
    call.world.keeper.reboot(call.region, [instance.id for instance in instances])
    return {}


def find(call: ParsedRequest, ids: list[str]) -> list[Any]:
    """Return the instances with these ids."""
    if not ids:
        raise AwsError("MissingParameter", "The request must contain the parameter InstanceId")
    known = {instance.id: instance for instance in call.backend.all_instances()}
    missing = [instance_id for instance_id in ids if instance_id not in known]
    if missing:
        noun, verb = ("ID", "does") if len(missing) == 1 else ("IDs", "do")
        raise AwsError("InvalidInstanceID.NotFound", f"The instance {noun} '{', '.join(missing)}' {verb} not exist")
    return [known[instance_id] for instance_id in ids]


def _require_unprotected(instance: Any, attribute: str, participle: str) -> None:  # noqa: ANN401
    """Reject a call that an attribute of the instance forbids."""
    if getattr(instance, camelcase_to_underscores(attribute)):
        raise AwsError(
            "OperationNotPermitted",
            f"The instance '{instance.id}' may not be {participle}. Modify its '{attribute}' instance attribute and "
            "try again.",
        )


def _require(instances: Iterable[Any], states: tuple[str, ...]) -> None:
    for instance in instances:
        if instance.state not in states:
            raise AwsError(
                "IncorrectInstanceState",
                f"The instance '{instance.id}' is not in a state from which it can be changed: {instance.state}.",
            )


def _transition(instance: Any, state: str, *, unless: tuple[str, ...]) -> dict[str, Any]:  # noqa: ANN401
    before = str(instance.state)
    set_state(instance, before if before in unless else state)
    return _state_change(instance, before)


def _state_change(instance: Any, before: str) -> dict[str, Any]:  # noqa: ANN401
    after = str(instance.state)
    return {
        "InstanceId": instance.id,
        "CurrentState": {"Code": STATE_CODES[after], "Name": after},
        "PreviousState": {"Code": STATE_CODES[before], "Name": before},
    }


def set_state(instance: Any, name: str) -> None:  # noqa: ANN401
    """Set the state of a moto instance."""
    instance._state.name, instance._state.code = name, STATE_CODES[name]
