"""Schedules come due: the calls that AWS makes by itself. Callers hold the world's lock."""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.scheduler.models import scheduler_backends

from cloudgpu.rehearsal.aws_api.iam_permissions import allows, role_of, trusts
from cloudgpu.rehearsal.aws_api.launch.run_instances import shut_down
from cloudgpu.rehearsal.aws_api.scheduler import SERVICE
from cloudgpu.rehearsal.aws_api.world import Keeper
from cloudgpu.rehearsal.state.records import records_of

_ONCE = re.compile(r"at\((.+)\)")
_SDK = ":scheduler:::aws-sdk:ec2:"
_log = logging.getLogger(__name__)


def carry_out_due(now: datetime, keeper: Keeper) -> bool:
    """Carry out every one-time schedule whose moment has come; whether there was one."""
    due = [(group, schedule) for group, schedule in _all() if _is_due(schedule, now)]
    for group, schedule in due:
        try:
            _invoke(group, schedule, keeper, now)
        except ValueError as err:
            # As on AWS: nobody waits for the answer of a schedule, so a refusal only stands in a log.
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
    found = _ONCE.fullmatch(schedule.schedule_expression)
    if schedule.state != "ENABLED" or found is None or schedule.schedule_expression_timezone != "UTC":
        return False
    return datetime.fromisoformat(found[1]).replace(tzinfo=UTC) <= now


def _invoke(group: Any, schedule: Any, keeper: Keeper, now: datetime) -> None:  # noqa: ANN401
    """Make the call as the schedule's role.

    Raises:
        ValueError: AWS would refuse it.
    """
    target = schedule.target
    made = _CALLS.get(target["Arn"].rpartition(_SDK)[2]) if _SDK in target["Arn"] else None
    if made is None:
        message = f"the rehearsal cloud does not simulate the target {target['Arn']}"
        raise ValueError(message)
    role = role_of(target["RoleArn"])
    if role is None or not trusts(role, SERVICE, group.arn):
        message = f"the role {target['RoleArn']} may not be taken"
        raise ValueError(message)
    region = schedule.arn.split(":")[3]
    instances = made(region, role, json.loads(target.get("Input") or "{}"))
    living = [instance for instance in instances if instance.state != "terminated"]
    shut_down(living, now)
    _log.info("schedule %s ends %s", schedule.arn, ", ".join(instance.id for instance in living) or "nothing")
    keeper.end(region, [instance.id for instance in living])


def _terminated(region: str, role: Any, parameters: Mapping[str, Any]) -> list[Any]:  # noqa: ANN401
    """All of them or none, as TerminateInstances has it.

    Raises:
        ValueError: One is not known any more, or not the role's to end.
    """
    ids = parameters.get("InstanceIds") or []
    known = {instance.id: instance for instance in ec2_backends[DEFAULT_ACCOUNT_ID][region].all_instances()}
    missing = [one for one in ids if one not in known]
    if missing:
        message = f"InvalidInstanceID.NotFound: {', '.join(missing)}"
        raise ValueError(message)
    for one in ids:
        _check(region, role, "TerminateInstances", f"instance/{one}", one)
    return [known[one] for one in ids]


def _deleted(region: str, role: Any, parameters: Mapping[str, Any]) -> list[Any]:  # noqa: ANN401
    """What is left of instant fleets; one that is not known spares the others.

    Raises:
        ValueError: One is not the role's to delete, or its instances were to be kept.
    """
    if not parameters.get("TerminateInstances"):
        message = "NoTerminateInstances is not supported for fleets of type instant"
        raise ValueError(message)
    ids = parameters.get("FleetIds") or []
    for one in ids:
        _check(region, role, "DeleteFleets", f"fleet/{one}", one)
    backend = ec2_backends[DEFAULT_ACCOUNT_ID][region]
    known = records_of(backend).fleets
    fleets = [known[one] for one in ids if one in known]
    for fleet in fleets:
        fleet.deleted = True
    members = {one for fleet in fleets for one in fleet.instance_ids()}
    return [one for one in backend.all_instances() if one.id in members]


def _check(region: str, role: Any, call: str, resource: str, resource_id: str) -> None:  # noqa: ANN401
    tags = ec2_backends[DEFAULT_ACCOUNT_ID][region].tags.get(resource_id, {})
    if not allows(role, f"ec2:{call}", f"arn:aws:ec2:{region}:{DEFAULT_ACCOUNT_ID}:{resource}", tags):
        message = f"the role {role.name} may not end {resource_id}"
        raise ValueError(message)


_CALLS = {"terminateInstances": _terminated, "deleteFleets": _deleted}
