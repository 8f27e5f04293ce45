"""`aws:scheduler/schedule:Schedule`."""

from typing import Any, ClassVar

from cloudgpu.aws.resources.base import HandlerContext, Physical, Properties
from cloudgpu.aws.resources.described import DescribedHandler, completed
from cloudgpu.aws.session.errors import is_gone, is_taken, typed
from cloudgpu.aws.session.session import Clients
from cloudgpu.aws.session.waiters import retried
from cloudgpu.errors import BadRequestError, CloudGpuError

_SPREAD_S = 90
"""How long a new role may be unknown to EventBridge Scheduler."""
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
    """A one-time EventBridge schedule that makes one AWS call. Its Pulumi ID is `group/name`."""

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

    def create(self, ctx: HandlerContext, inputs: Properties) -> Physical:
        """Create the schedule, waiting until a newly created role is known.

        Raises:
            BadRequestError: A schedule of this name already exists in the group, or its role may not be used.
        """

        def send() -> None:
            with typed(f"making schedule {inputs['name']}"):
                ctx.clients.client("scheduler").create_schedule(ClientToken=ctx.token, **_request(inputs))

        retried(ctx.clock, send, when=_role_unknown, total_s=_SPREAD_S)
        return _present(ctx.clients, inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> Physical | None:
        """Return the schedule of this name after updating it. Every schedule in the cluster's group is its own."""
        found = _described(ctx.clients, inputs["groupName"], inputs["name"])
        if found is None:
            return None
        return completed(lambda: self.update(ctx, physical_id(inputs), {}, inputs), lambda: _physical(found))

    def read(self, ctx: HandlerContext, physical_id: str) -> Physical | None:
        """Return the current state; None also if the schedule has run and deleted itself."""
        group, _, name = physical_id.partition("/")
        found = _described(ctx.clients, group, name)
        return _physical(found) if found else None

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> Physical:  # noqa: ARG002
        """Change its time, its target, its state. AWS sets to default whatever is left out, so all is sent."""

        def send() -> None:
            with typed(f"changing schedule {physical_id}"):
                ctx.clients.client("scheduler").update_schedule(**_request(new))

        retried(ctx.clock, send, when=_role_unknown, total_s=_SPREAD_S)
        return _present(ctx.clients, new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Delete it; one that was carried out has deleted itself."""
        group, _, name = physical_id.partition("/")
        try:
            with typed(f"deleting schedule {physical_id}"):
                ctx.clients.client("scheduler").delete_schedule(GroupName=group, Name=name)
        except CloudGpuError as err:
            if not is_gone(err) and not is_taken(err):  # its group is just being deleted, and it with it
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
        with typed(f"looking at schedule {group}/{name}"):
            found: dict[str, Any] = clients.client("scheduler").get_schedule(GroupName=group, Name=name)
    except CloudGpuError as err:
        if is_gone(err):
            return None
        raise
    return found


def _present(clients: Clients, inputs: Properties) -> Physical:
    """Return the current state, or the requested one if the schedule has already run and deleted itself."""
    found = _described(clients, inputs["groupName"], inputs["name"])
    return _physical(found) if found else Physical(physical_id(inputs), dict(inputs))


def _physical(found: dict[str, Any]) -> Physical:
    target = found["Target"]
    outputs = {
        **{key: found.get(wire) or "" for key, wire in _WIRE.items()},
        "arn": found["Arn"],
        "name": found["Name"],
        "groupName": found["GroupName"],
        "flexibleTimeWindow": {"mode": found["FlexibleTimeWindow"]["Mode"]},
        "target": {key: target.get(wire) or "" for key, wire in _TARGET.items()},
    }
    return Physical(f"{found['GroupName']}/{found['Name']}", outputs)
