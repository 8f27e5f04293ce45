"""Handlers for EventBridge schedules and schedule groups."""

from typing import Any, ClassVar

from cloudgpu.aws.ec2.tagging import tags_to_dict, to_tag_list
from cloudgpu.aws.resources.handler import (
    DescribedHandler,
    ExistingResource,
    HandlerContext,
    Properties,
    all_tags,
    changed_tags,
    complete_interrupted,
    delete_when_unused,
    is_ours,
    require_existing,
    response_unless_gone,
    tag_outputs,
)
from cloudgpu.aws.session.errors import convert_errors, is_gone, is_taken
from cloudgpu.aws.session.eventual_consistency import poll, retry
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import BadRequestError, CloudGpuError

_ROLE_WAIT_S = 90
"""Maximum number of seconds until EventBridge Scheduler recognizes a new role."""
_ROLE_UNKNOWN = "must allow aws eventbridge scheduler to assume the role"
_WIRE = {
    "scheduleExpression": "ScheduleExpression",
    "scheduleExpressionTimezone": "ScheduleExpressionTimezone",
    "state": "State",
    "description": "Description",
    "actionAfterCompletion": "ActionAfterCompletion",
}
_TARGET = {"arn": "Arn", "roleArn": "RoleArn", "input": "Input"}
_RELEASE_S = 300
DELETING = "DELETING"


class ScheduleHandler(DescribedHandler):
    """Handler for one-time EventBridge schedules, each of which makes one AWS call. The Pulumi ID is `group/name`."""

    type: ClassVar[str] = "aws:scheduler/schedule:Schedule"
    accepts = frozenset({"name", "groupName", "flexibleTimeWindow", "target", *_WIRE})
    requires = frozenset({"name", "scheduleExpression", "flexibleTimeWindow", "target"})
    defaults: ClassVar[Properties] = {
        "groupName": "default",
        "scheduleExpressionTimezone": "UTC",
        "state": "ENABLED",
        "actionAfterCompletion": "NONE",
    }
    replaced_by = frozenset({"name", "groupName"})
    nested: ClassVar[dict[str, frozenset[str]]] = {
        "flexibleTimeWindow": frozenset({"mode"}),
        "target": frozenset(_TARGET),
    }

    def create(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource:
        """Create the schedule. Retry until EventBridge Scheduler recognizes a new role."""

        def send() -> None:
            with convert_errors(f"creating schedule {inputs['name']}"):
                ctx.clients.client("scheduler").create_schedule(ClientToken=ctx.token, **_request(inputs))

        retry(ctx.clock, send, when=_role_unknown, total_s=_ROLE_WAIT_S)
        return _present(ctx.clients, inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource | None:
        """Find the schedule with this name and update it, or return None if the schedule does not exist.

        The name is sufficient because a group contains the schedules of only one cluster.
        """
        schedule = _described(ctx.clients, inputs["groupName"], inputs["name"])
        if schedule is None:
            return None
        return complete_interrupted(
            lambda: self.update(ctx, physical_id(inputs), {}, inputs), lambda: _existing_schedule(schedule)
        )

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        """Return the current state, or None if the schedule does not exist, for example because it deleted itself."""
        group, _, name = physical_id.partition("/")
        schedule = _described(ctx.clients, group, name)
        return _existing_schedule(schedule) if schedule else None

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> ExistingResource:  # noqa: ARG002
        """Update the schedule. Send every property, because AWS resets omitted properties to their defaults."""

        def send() -> None:
            with convert_errors(f"changing schedule {physical_id}"):
                ctx.clients.client("scheduler").update_schedule(**_request(new))

        retry(ctx.clock, send, when=_role_unknown, total_s=_ROLE_WAIT_S)
        return _present(ctx.clients, new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Delete the schedule. A schedule that no longer exists, such as one that deleted itself, counts as deleted."""
        group, _, name = physical_id.partition("/")
        try:
            with convert_errors(f"deleting schedule {physical_id}"):
                ctx.clients.client("scheduler").delete_schedule(GroupName=group, Name=name)
        except CloudGpuError as err:
            if not is_gone(err) and not is_taken(err):  # a conflict means that AWS is already deleting the group
                raise


def physical_id(inputs: Properties) -> str:
    """Return `group/name`, the ID that the provider uses."""
    return f"{inputs['groupName']}/{inputs['name']}"


def _role_unknown(err: CloudGpuError) -> bool:
    return isinstance(err, BadRequestError) and _ROLE_UNKNOWN in err.message.lower()


def _request(inputs: Properties) -> dict[str, Any]:
    target = {wire: inputs["target"][key] for key, wire in _TARGET.items() if inputs["target"].get(key)}
    return {
        "Name": inputs["name"],
        "GroupName": inputs["groupName"],
        "FlexibleTimeWindow": {"Mode": inputs["flexibleTimeWindow"]["mode"]},
        "Target": target,
        **{wire: inputs[key] for key, wire in _WIRE.items() if inputs.get(key)},
    }


def _described(clients: Clients, group: str, name: str) -> dict[str, Any] | None:
    get = clients.client("scheduler").get_schedule
    return response_unless_gone(f"describing schedule {group}/{name}", get, GroupName=group, Name=name)


def _present(clients: Clients, inputs: Properties) -> ExistingResource:
    """Return the current state, or the requested state if the schedule has already run and deleted itself."""
    schedule = _described(clients, inputs["groupName"], inputs["name"])
    return _existing_schedule(schedule) if schedule else ExistingResource(physical_id(inputs), dict(inputs))


def _existing_schedule(schedule: dict[str, Any]) -> ExistingResource:
    target = schedule["Target"]
    outputs = {
        **{key: schedule.get(wire) or "" for key, wire in _WIRE.items()},
        "arn": schedule["Arn"],
        "name": schedule["Name"],
        "groupName": schedule["GroupName"],
        "flexibleTimeWindow": {"mode": schedule["FlexibleTimeWindow"]["Mode"]},
        "target": {key: target.get(wire) or "" for key, wire in _TARGET.items()},
    }
    return ExistingResource(f"{schedule['GroupName']}/{schedule['Name']}", outputs)


class ScheduleGroupHandler(DescribedHandler):
    """Handler for schedule groups. Groups are tagged because schedules cannot be. The Pulumi ID is the group's name."""

    type: ClassVar[str] = "aws:scheduler/scheduleGroup:ScheduleGroup"
    accepts = frozenset({"name"})
    requires = frozenset({"name"})
    replaced_by = frozenset({"name"})

    def create(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource:
        """Create the group."""
        name, tags = inputs["name"], _filled(all_tags(ctx, inputs))
        with convert_errors(f"creating schedule group {name}"):
            response = ctx.clients.client("scheduler").create_schedule_group(
                Name=name, Tags=to_tag_list(tags), ClientToken=ctx.token
            )
        return _existing_group({"Name": name, "Arn": response["ScheduleGroupArn"]}, tags, inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource | None:
        """Return the group left behind by an interrupted `create` with this token, or None if there is none."""
        group = describe_group(ctx.clients, inputs["name"])
        tags = group_tags(ctx.clients, group)
        return _existing_group(group, tags, inputs) if group and is_ours(ctx, tags) else None

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        """Return the current state, or None if the group does not exist or is being deleted."""
        group = describe_group(ctx.clients, physical_id)
        tags = group_tags(ctx.clients, group)
        return _existing_group(group, tags, {"tags": tags}) if group else None

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> ExistingResource:
        """Change the tags."""
        group = require_existing(describe_group(ctx.clients, physical_id), f"schedule group {physical_id}")
        before, after = _filled(changed_tags(ctx, old)), _filled(changed_tags(ctx, new))
        scheduler = ctx.clients.client("scheduler")
        with convert_errors(f"tagging schedule group {physical_id}"):
            scheduler.tag_resource(ResourceArn=group["Arn"], Tags=to_tag_list(after))
            removed = sorted(before.keys() - after.keys())
            if removed:
                scheduler.untag_resource(ResourceArn=group["Arn"], TagKeys=removed)
        return _existing_group(group, group_tags(ctx.clients, group), new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Delete the group with every schedule in it, and wait until AWS confirms the deletion."""

        def attempt() -> None:
            with convert_errors(f"deleting schedule group {physical_id}"):
                ctx.clients.client("scheduler").delete_schedule_group(Name=physical_id, ClientToken=ctx.token or "end")

        if not delete_when_unused(ctx, attempt, _RELEASE_S):
            return
        what = f"schedule group {physical_id} to be deleted"
        poll(
            ctx.clock,
            lambda: _described_in_any_state(ctx.clients, physical_id) is None or None,
            what=what,
            total_s=_RELEASE_S,
        )


def describe_group(clients: Clients, name: str) -> dict[str, Any] | None:
    """Return AWS's description of a group, or None if the group does not exist or is being deleted."""
    group = _described_in_any_state(clients, name)
    return None if group is None or group.get("State") == DELETING else group


def group_tags(clients: Clients, group: dict[str, Any] | None) -> dict[str, str]:
    """Return the tags of a group; empty if the group no longer exists."""
    if group is None:
        return {}
    list_tags = clients.client("scheduler").list_tags_for_resource
    what = f"reading the tags of schedule group {group['Name']}"
    response = response_unless_gone(what, list_tags, ResourceArn=group["Arn"])
    return tags_to_dict(response.get("Tags")) if response is not None else {}


def _filled(tags: dict[str, str]) -> dict[str, str]:
    """Return the tags that have a value. Unlike EC2 and IAM, EventBridge Scheduler rejects empty tag values."""
    return {key: value for key, value in tags.items() if value}


def _described_in_any_state(clients: Clients, name: str) -> dict[str, Any] | None:
    get = clients.client("scheduler").get_schedule_group
    return response_unless_gone(f"describing schedule group {name}", get, Name=name)


def _existing_group(group: dict[str, Any], tags: dict[str, str], inputs: Properties) -> ExistingResource:
    outputs = {
        "arn": group["Arn"],
        "name": group["Name"],
        "state": group.get("State", "ACTIVE"),
        **tag_outputs(inputs, tags),
    }
    return ExistingResource(group["Name"], outputs)
