"""EventBridge Scheduler: moto's implementation, the validation that moto lacks, and the execution of due schedules."""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from moto.core.exceptions import JsonRESTError
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.scheduler.models import scheduler_backends
from moto.scheduler.responses import EventBridgeSchedulerResponse

from cloudgpu import bounds
from cloudgpu.rehearsal.aws_api.ec2.instances import mark_shutting_down
from cloudgpu.rehearsal.aws_api.iam_service import allows, find_role, trusts
from cloudgpu.rehearsal.aws_api.interfaces import InstanceWorker
from cloudgpu.rehearsal.aws_api.records import records_of

_AT: Final = re.compile(r"at\((\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2})\)")
_RATE: Final = re.compile(r"rate\([1-9]\d* (minute|hour|day)s?\)")
_CRON: Final = re.compile(r"cron\((.*)\)")
_ANY: Final = "?"
_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_FIELDS: Final = (
    (0, 59, (), ""),
    (0, 23, (), ""),
    (1, 31, (), "LW"),
    (1, 12, _MONTHS, ""),
    (1, 7, _DAYS, "L"),
    (1970, 2199, (), ""),
)
"""Lowest and highest number of each field of a cron expression, names for the numbers, and letters that it allows."""
_DAY_OF_MONTH, _DAY_OF_WEEK = 2, 4
SERVICE = "scheduler.amazonaws.com"
_NAME = re.compile(r"[0-9a-zA-Z-_.]{1,64}")
_TOKENS = "rehearsal_tokens"
_SUMMARY_MEMBERS = ("Arn", "CreationDate", "GroupName", "LastModificationDate", "Name", "State", "Target")
"""Members of a schedule in a listing. Its expression and time window are returned by GetSchedule only."""
_ONCE = re.compile(r"at\((.+)\)")
_SDK = ":scheduler:::aws-sdk:ec2:"
_log = logging.getLogger(__name__)


def is_valid_expression(expression: str) -> bool:
    """Return True if EventBridge Scheduler accepts the expression."""
    at, cron = _AT.fullmatch(expression), _CRON.fullmatch(expression)
    if at is not None:
        return _is_time(at[1])
    return _is_cron(cron[1]) if cron is not None else bool(_RATE.fullmatch(expression))


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _is_cron(text: str) -> bool:
    """Return True for six valid fields of which exactly one of the two for days is `?`."""
    fields = text.split(" ")
    if len(fields) != len(_FIELDS):
        return False
    if [fields[_DAY_OF_MONTH], fields[_DAY_OF_WEEK]].count(_ANY) != 1:
        return False
    return all(
        (field == _ANY and index in (_DAY_OF_MONTH, _DAY_OF_WEEK)) or _is_field(field, *_FIELDS[index])
        for index, field in enumerate(fields)
    )


def _is_field(field: str, low: int, high: int, names: tuple[str, ...], letters: str) -> bool:
    return all(_is_item(item, low, high, names, letters) for item in field.split(","))


def _is_item(item: str, low: int, high: int, names: tuple[str, ...], letters: str) -> bool:
    """Return True for `*`, a value or a range, each optionally with a step, or for a form with letters such as `3L`."""
    values, slash, step = item.partition("/")
    if slash and not re.fullmatch(r"[0-9]{1,9}", step):
        return False
    if values == "*":
        return True
    if letters and re.fullmatch(rf"\d{{0,2}}[{letters}]|[1-7]#[1-5]", values):
        return True
    ends = values.split("-")
    return len(ends) in (1, 2) and all(_is_value(end, low, high, names) for end in ends)


def _is_value(text: str, low: int, high: int, names: tuple[str, ...]) -> bool:
    if text.upper() in names:
        return True
    try:
        bounds.parse_whole_number(text, low, high)
    except ValueError:
        return False
    return True


class SchedulerError(JsonRESTError):
    """An error response with an AWS error code."""

    def __init__(self, code: str, message: str, http: int = 400) -> None:
        self.code = http
        super().__init__(code, message)


class StrictScheduler(EventBridgeSchedulerResponse):
    """A handler for one EventBridge Scheduler request."""

    def create_schedule_group(self) -> str:
        """Create a group with a unique name; a call that repeats a client token returns the existing group."""
        name = _validated_name(str(self._get_param("Name")))
        backend = self.scheduler_backend
        if name in backend.schedule_groups and not self._is_repeated("group", name):
            raise SchedulerError("ConflictException", f"Schedule group {name} already exists.", 409)
        if name in backend.schedule_groups:
            return json.dumps({"ScheduleGroupArn": backend.schedule_groups[name].arn})
        self._save_token("group", name)
        return str(super().create_schedule_group())

    def delete_schedule_group(self) -> str:
        """Delete a group. The `default` group cannot be deleted."""
        name = self._resource_name()
        if name == "default":
            raise SchedulerError("ValidationException", "The default schedule group cannot be deleted.")
        group = self.scheduler_backend.get_schedule_group(name)
        self.scheduler_backend.tagger.delete_all_tags_for_resource(group.arn)
        return str(super().delete_schedule_group())

    def list_tags_for_resource(self) -> str:
        """List the tags of a group; only groups have tags."""
        self._require_group()
        return str(super().list_tags_for_resource())

    def tag_resource(self) -> str:
        """Tag a group; only groups have tags."""
        self._require_group()
        return str(super().tag_resource())

    def create_schedule(self) -> str:
        """Create a schedule after validating its parameters, its group and its role, in this order."""
        name = _validated_name(self._resource_name())
        self._check_parameters()
        group = self._group()
        if name in group.schedules and self._is_repeated("schedule", f"{group.name}/{name}"):
            return json.dumps({"ScheduleArn": group.schedules[name].arn})
        if name in group.schedules:
            raise SchedulerError("ConflictException", f"Schedule {name} already exists.", 409)
        self._check_role(group)
        self._save_token("schedule", f"{group.name}/{name}")
        response = str(super().create_schedule())
        self._set_default_action(group.schedules[name])
        return response

    def update_schedule(self) -> str:
        """Update a schedule; omitted fields are reset to their defaults."""
        self._check_parameters()
        group = self._group()
        self._check_role(group)
        response = str(super().update_schedule())
        schedule = group.schedules[self._resource_name()]
        self._set_default_action(schedule)
        schedule.state = self._get_param("State") or "ENABLED"
        return response

    def list_schedules(self) -> str:
        """List schedules, with the members of a summary only."""
        listing = json.loads(super().list_schedules())
        rows = [{name: row[name] for name in _SUMMARY_MEMBERS if name in row} for row in listing["Schedules"]]
        return json.dumps({**listing, "Schedules": rows})

    def _group(self) -> Any:  # noqa: ANN401 - moto's group
        return self.scheduler_backend.get_schedule_group(self._get_param("GroupName"))

    def _check_parameters(self) -> None:
        """Check what AWS checks before the group and the role.

        Source of the order: localstack, tests/aws/services/scheduler/test_scheduler.py, invalid expressions together
        with a role that does not exist.
        """
        expression = str(self._get_param("ScheduleExpression"))
        if not is_valid_expression(expression):
            raise SchedulerError("ValidationException", f"Invalid Schedule Expression {expression}.")
        if (self._get_param("FlexibleTimeWindow") or {}).get("Mode") not in ("OFF", "FLEXIBLE"):
            raise SchedulerError("ValidationException", "FlexibleTimeWindow.Mode must be OFF or FLEXIBLE.")

    def _check_role(self, group: Any) -> None:  # noqa: ANN401
        role = find_role(str((self._get_param("Target") or {}).get("RoleArn")))
        if role is None or not trusts(role, SERVICE, group.arn):
            text = "The execution role you provide must allow AWS EventBridge Scheduler to assume the role."
            raise SchedulerError("ValidationException", text)

    def _set_default_action(self, schedule: Any) -> None:  # noqa: ANN401 - moto's schedule
        """Set ActionAfterCompletion, which is NONE by default on AWS and which moto does not update."""
        schedule.action_after_completion = self._get_param("ActionAfterCompletion") or "NONE"

    def _require_group(self) -> None:
        arn = self._unquoted_arn()
        if not any(group.arn == arn for group in self.scheduler_backend.schedule_groups.values()):
            raise SchedulerError("ResourceNotFoundException", f"Resource {arn} does not exist.", 404)

    def _unquoted_arn(self) -> str:
        from_path = self.uri.split("?")[0].split("/tags/")[-1]
        return from_path.replace("%3A", ":").replace("%2F", "/")

    def _resource_name(self) -> str:
        return str(self.uri.split("?")[0].split("/")[-1])

    def _tokens(self) -> dict[tuple[str, str], str]:
        """Return the client tokens, stored on moto's backend so that a snapshot contains them."""
        tokens: dict[tuple[str, str], str] = self.scheduler_backend.__dict__.setdefault(_TOKENS, {})
        return tokens

    def _is_repeated(self, resource_type: str, name: str) -> bool:
        token = str(self._get_param("ClientToken") or "")
        return bool(token) and self._tokens().get((resource_type, token)) == name

    def _save_token(self, resource_type: str, name: str) -> None:
        token = str(self._get_param("ClientToken") or "")
        if token:
            self._tokens()[resource_type, token] = name


def _validated_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise SchedulerError("ValidationException", f"Value '{name}' at 'name' failed to satisfy the constraint.")
    return name


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
