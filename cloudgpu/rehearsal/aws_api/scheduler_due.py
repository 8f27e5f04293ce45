"""Run the schedules that are due. Callers must hold the server's lock."""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.scheduler.models import scheduler_backends

from cloudgpu.rehearsal.aws_api.iam_permissions import allows, find_role, trusts
from cloudgpu.rehearsal.aws_api.interfaces import InstanceWorker
from cloudgpu.rehearsal.aws_api.launch.run_instances import mark_shutting_down
from cloudgpu.rehearsal.aws_api.scheduler import SERVICE
from cloudgpu.rehearsal.state.records import records_of

_ONCE = re.compile(r"at\((.+)\)")
_SDK = ":scheduler:::aws-sdk:ec2:"
_log = logging.getLogger(__name__)


def run_due_schedules(now: datetime, keeper: InstanceWorker) -> bool:
    """Run every one-time schedule that is due. Return True if any was due."""
    due = [(group, schedule) for group, schedule in _all() if _is_due(schedule, now)]
    for group, schedule in due:
        try:
            _invoke(group, schedule, keeper, now)
        except ValueError as err:
            # As on AWS, no caller receives the response to a scheduled call, so errors appear only in the log.
            _log.warning("schedule %s failed: %s", schedule.arn, err)
        if schedule.action_after_completion == "DELETE":
            group.delete_schedule(schedule.name)
        else:
            schedule.state = "DISABLED"
    return bool(due)


def _all() -> Iterator[tuple[Any, Any]]:
    registered: list[Any] = list(scheduler_backends.iter_backends())
    for _, _, backend in registered:
        for group in backend.schedule_groups.values():
            for schedule in group.schedules.values():
                yield group, schedule


def _is_due(schedule: Any, now: datetime) -> bool:  # noqa: ANN401 - moto is untyped
    match = _ONCE.fullmatch(schedule.schedule_expression)
    if schedule.state != "ENABLED" or match is None or schedule.schedule_expression_timezone != "UTC":
        return False
    return datetime.fromisoformat(match[1]).replace(tzinfo=UTC) <= now


def _invoke(group: Any, schedule: Any, keeper: InstanceWorker, now: datetime) -> None:  # noqa: ANN401
    """Make the API call that the schedule targets, with the permissions of its role."""
    target = schedule.target
    select_instances = _TARGETS.get(target["Arn"].rpartition(_SDK)[2]) if _SDK in target["Arn"] else None
    if select_instances is None:
        message = f"the rehearsal cloud does not simulate the target {target['Arn']}"
        raise ValueError(message)
    role = find_role(target["RoleArn"])
    if role is None or not trusts(role, SERVICE, group.arn):
        message = f"EventBridge Scheduler cannot assume the role {target['RoleArn']}"
        raise ValueError(message)
    region = schedule.arn.split(":")[3]
    instances = select_instances(region, role, json.loads(target.get("Input") or "{}"))
    running = [instance for instance in instances if instance.state != "terminated"]
    mark_shutting_down(running, now)
    _log.info("schedule %s terminates %s", schedule.arn, ", ".join(instance.id for instance in running) or "nothing")
    keeper.end(region, [instance.id for instance in running])


def _instances_to_terminate(region: str, role: Any, parameters: Mapping[str, Any]) -> list[Any]:  # noqa: ANN401
    """Return the instances that a TerminateInstances call terminates; as on AWS, one bad id fails the whole call."""
    ids = parameters.get("InstanceIds") or []
    known = {instance.id: instance for instance in ec2_backends[DEFAULT_ACCOUNT_ID][region].all_instances()}
    missing = [instance_id for instance_id in ids if instance_id not in known]
    if missing:
        message = f"InvalidInstanceID.NotFound: {', '.join(missing)}"
        raise ValueError(message)
    for instance_id in ids:
        _require_permission(region, role, "TerminateInstances", f"instance/{instance_id}", instance_id)
    return [known[instance_id] for instance_id in ids]


def _instances_of_deleted_fleets(region: str, role: Any, parameters: Mapping[str, Any]) -> list[Any]:  # noqa: ANN401
    """Mark instant fleets as deleted and return their instances. Unknown fleets are skipped."""
    if not parameters.get("TerminateInstances"):
        message = "NoTerminateInstances is not supported for fleets of type instant"
        raise ValueError(message)
    ids = parameters.get("FleetIds") or []
    for fleet_id in ids:
        _require_permission(region, role, "DeleteFleets", f"fleet/{fleet_id}", fleet_id)
    backend = ec2_backends[DEFAULT_ACCOUNT_ID][region]
    known = records_of(backend).fleets
    fleets = [known[fleet_id] for fleet_id in ids if fleet_id in known]
    for fleet in fleets:
        fleet.deleted = True
    members = {instance_id for fleet in fleets for instance_id in fleet.instance_ids()}
    return [instance for instance in backend.all_instances() if instance.id in members]


def _require_permission(region: str, role: Any, call: str, resource: str, resource_id: str) -> None:  # noqa: ANN401
    tags = ec2_backends[DEFAULT_ACCOUNT_ID][region].tags.get(resource_id, {})
    if not allows(role, f"ec2:{call}", f"arn:aws:ec2:{region}:{DEFAULT_ACCOUNT_ID}:{resource}", tags):
        message = f"the role {role.name} may not terminate {resource_id}"
        raise ValueError(message)


_TARGETS = {"terminateInstances": _instances_to_terminate, "deleteFleets": _instances_of_deleted_fleets}
