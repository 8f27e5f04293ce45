"""Handler for `aws:scheduler/scheduleGroup:ScheduleGroup`."""

from typing import Any, ClassVar

from cloudgpu.aws.ec2.tagging import tags_to_dict, to_tag_list
from cloudgpu.aws.resources.base import ExistingResource, HandlerContext, Properties
from cloudgpu.aws.resources.described import (
    DescribedHandler,
    all_tags,
    changed_tags,
    is_ours,
    require_existing,
    tag_outputs,
)
from cloudgpu.aws.session.errors import convert_errors, is_gone, is_in_use
from cloudgpu.aws.session.session import Clients
from cloudgpu.aws.session.waiters import poll, retry
from cloudgpu.errors import CloudGpuError

_RELEASE_S = 300
DELETING = "DELETING"


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
        return _physical({"Name": name, "Arn": response["ScheduleGroupArn"]}, tags, inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource | None:
        """Return the group left behind by an interrupted `create` with this token, or None if there is none."""
        group = describe_group(ctx.clients, inputs["name"])
        tags = group_tags(ctx.clients, group)
        return _physical(group, tags, inputs) if group and is_ours(ctx, tags) else None

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        """Return the current state, or None if the group does not exist or is being deleted."""
        group = describe_group(ctx.clients, physical_id)
        tags = group_tags(ctx.clients, group)
        return _physical(group, tags, {"tags": tags}) if group else None

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
        return _physical(group, group_tags(ctx.clients, group), new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Delete the group with every schedule in it, and wait until AWS confirms the deletion."""

        def attempt() -> None:
            with convert_errors(f"deleting schedule group {physical_id}"):
                ctx.clients.client("scheduler").delete_schedule_group(Name=physical_id, ClientToken=ctx.token or "end")

        try:
            retry(ctx.clock, attempt, when=is_in_use, total_s=_RELEASE_S)
        except CloudGpuError as err:
            if not is_gone(err):
                raise
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
    try:
        with convert_errors(f"reading the tags of schedule group {group['Name']}"):
            return tags_to_dict(
                clients.client("scheduler").list_tags_for_resource(ResourceArn=group["Arn"]).get("Tags")
            )
    except CloudGpuError as err:
        if is_gone(err):
            return {}
        raise


def _filled(tags: dict[str, str]) -> dict[str, str]:
    """Return the tags that have a value. Unlike EC2 and IAM, EventBridge Scheduler rejects empty tag values."""
    return {key: value for key, value in tags.items() if value}


def _described_in_any_state(clients: Clients, name: str) -> dict[str, Any] | None:
    try:
        with convert_errors(f"describing schedule group {name}"):
            group: dict[str, Any] = clients.client("scheduler").get_schedule_group(Name=name)
    except CloudGpuError as err:
        if is_gone(err):
            return None
        raise
    return group


def _physical(group: dict[str, Any], tags: dict[str, str], inputs: Properties) -> ExistingResource:
    outputs = {
        "arn": group["Arn"],
        "name": group["Name"],
        "state": group.get("State", "ACTIVE"),
        **tag_outputs(inputs, tags),
    }
    return ExistingResource(group["Name"], outputs)
