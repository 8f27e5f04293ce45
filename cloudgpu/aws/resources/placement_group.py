"""`aws:ec2/placementGroup:PlacementGroup`."""

from typing import Any, ClassVar

from cloudgpu.aws.ec2.tagging import mapped, retag, specification
from cloudgpu.aws.resources.base import HandlerContext, Physical, Properties
from cloudgpu.aws.resources.described import DescribedHandler, all_tags, changed_tags, existing, is_ours, tag_outputs
from cloudgpu.aws.session.errors import is_gone, is_in_use, typed
from cloudgpu.aws.session.session import Clients
from cloudgpu.aws.session.waiters import awaited, retried
from cloudgpu.errors import CloudGpuError

_APPEAR_S = 60
_RELEASE_S = 600


class PlacementGroupHandler(DescribedHandler):
    """Placement group. Its Pulumi ID is its name."""

    type: ClassVar[str] = "aws:ec2/placementGroup:PlacementGroup"
    accepts = frozenset({"name", "strategy", "partitionCount", "spreadLevel"})
    requires = frozenset({"name", "strategy"})
    replaced_by = accepts

    def create(self, ctx: HandlerContext, inputs: Properties) -> Physical:
        """Create the group and wait until it is available.

        Raises:
            BadRequestError: A group of this name already exists.
        """
        name = inputs["name"]
        request: dict[str, Any] = {
            "GroupName": name,
            "Strategy": inputs["strategy"],
            "TagSpecifications": [specification("placement-group", all_tags(ctx, inputs))],
        }
        if inputs.get("partitionCount"):
            request["PartitionCount"] = int(inputs["partitionCount"])
        if inputs.get("spreadLevel"):
            request["SpreadLevel"] = inputs["spreadLevel"]
        with typed(f"making placement group {name}"):
            ctx.clients.client("ec2").create_placement_group(**request)
        return self._available(ctx, inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> Physical | None:
        """Return the group of this name if this call created it."""
        found = _described(ctx.clients, inputs["name"])
        return self._available(ctx, inputs) if found and is_ours(ctx, mapped(found.get("Tags"))) else None

    def read(self, ctx: HandlerContext, physical_id: str) -> Physical | None:
        """Return the current state."""
        found = _described(ctx.clients, physical_id)
        return _physical(found, {"tags": mapped(found.get("Tags"))}) if found else None

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> Physical:
        """Change its tags."""
        found = existing(_described(ctx.clients, physical_id), f"placement group {physical_id}")
        retag(ctx.clients, found["GroupId"], changed_tags(ctx, old), changed_tags(ctx, new))
        return _physical(_described(ctx.clients, physical_id) or found, new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Delete the group once it has no instances, and wait until it is deleted."""

        def attempt() -> None:
            with typed(f"deleting placement group {physical_id}"):
                ctx.clients.client("ec2").delete_placement_group(GroupName=physical_id)

        try:
            retried(ctx.clock, attempt, when=is_in_use, total_s=_RELEASE_S)
        except CloudGpuError as err:
            if not is_gone(err):
                raise
        what = f"placement group {physical_id} to go"
        awaited(ctx.clock, lambda: _described(ctx.clients, physical_id) is None or None, what=what, total_s=_RELEASE_S)

    def _available(self, ctx: HandlerContext, inputs: Properties) -> Physical:
        name = inputs["name"]

        def look() -> dict[str, Any] | None:
            found = _described(ctx.clients, name)
            return found if found and found.get("State", "available") == "available" else None

        found = awaited(ctx.clock, look, what=f"placement group {name} to become available", total_s=_APPEAR_S)
        return _physical(found, inputs)


def _described(clients: Clients, name: str) -> dict[str, Any] | None:
    """Describe a group. One that is deleted stays listed for a while and counts as missing."""
    try:
        with typed(f"looking at placement group {name}"):
            groups = clients.client("ec2").describe_placement_groups(GroupNames=[name])["PlacementGroups"]
    except CloudGpuError as err:
        if is_gone(err):
            return None
        raise
    return next((group for group in groups if group.get("State") != "deleted"), None)


def _physical(found: dict[str, Any], inputs: Properties) -> Physical:
    outputs = {
        "arn": found.get("GroupArn", ""),
        "placementGroupId": found.get("GroupId", ""),
        "name": found["GroupName"],
        "strategy": found["Strategy"],
        "partitionCount": found.get("PartitionCount", 0),
        "spreadLevel": found.get("SpreadLevel", ""),
        **tag_outputs(inputs, mapped(found.get("Tags"))),
    }
    return Physical(found["GroupName"], outputs)
