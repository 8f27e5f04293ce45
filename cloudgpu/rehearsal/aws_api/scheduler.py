"""EventBridge Scheduler: moto's implementation plus the validation that moto lacks."""

import json
import re
from typing import Any

from moto.core.exceptions import JsonRESTError
from moto.scheduler.responses import EventBridgeSchedulerResponse

from cloudgpu.rehearsal.aws_api.iam_permissions import find_role, trusts
from cloudgpu.rehearsal.aws_api.schedule_expressions import is_valid_expression

SERVICE = "scheduler.amazonaws.com"
_NAME = re.compile(r"[0-9a-zA-Z-_.]{1,64}")
_TOKENS = "rehearsal_tokens"
_SUMMARY_MEMBERS = ("Arn", "CreationDate", "GroupName", "LastModificationDate", "Name", "State", "Target")
"""Members of a schedule in a listing. Its expression and time window are returned by GetSchedule only."""


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
