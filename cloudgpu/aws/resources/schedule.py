"""Handler for `aws:scheduler/schedule:Schedule`."""

from typing import Any, ClassVar

from cloudgpu.aws.resources.base import ExistingResource, HandlerContext, Properties
from cloudgpu.aws.resources.described import DescribedHandler, complete_interrupted
from cloudgpu.aws.session.errors import convert_errors, is_gone, is_taken
from cloudgpu.aws.session.session import Clients
from cloudgpu.aws.session.waiters import retry
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
            lambda: self.update(ctx, physical_id(inputs), {}, inputs), lambda: _physical(schedule)
        )

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        """Return the current state, or None if the schedule does not exist, for example because it deleted itself."""
        group, _, name = physical_id.partition("/")
        schedule = _described(ctx.clients, group, name)
        return _physical(schedule) if schedule else None

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
    try:
        with convert_errors(f"describing schedule {group}/{name}"):
            schedule: dict[str, Any] = clients.client("scheduler").get_schedule(GroupName=group, Name=name)
    except CloudGpuError as err:
        if is_gone(err):
            return None
        raise
    return schedule


def _present(clients: Clients, inputs: Properties) -> ExistingResource:
    """Return the current state, or the requested state if the schedule has already run and deleted itself."""
    schedule = _described(clients, inputs["groupName"], inputs["name"])
    return _physical(schedule) if schedule else ExistingResource(physical_id(inputs), dict(inputs))


def _physical(schedule: dict[str, Any]) -> ExistingResource:
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
