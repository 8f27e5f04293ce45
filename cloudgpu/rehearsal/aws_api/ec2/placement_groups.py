"""Placement groups, which moto lacks."""

import secrets
from typing import Any

from cloudgpu.rehearsal.aws_api.dispatch import AwsError, ParsedRequest, Rules, paginate_rows, tag_list
from cloudgpu.rehearsal.aws_api.records import PlacementGroup

RULES = Rules()
_STRATEGIES = ("cluster", "spread", "partition")


@RULES.action("CreatePlacementGroup")
def create(call: ParsedRequest) -> dict[str, Any]:
    """Create a group; reject a name that is already used in the region."""
    name = str(call.params.get("GroupName") or "")
    strategy = str(call.params.get("Strategy") or "cluster")
    if not name:
        raise AwsError("MissingParameter", "The request must contain the parameter GroupName")
    if strategy not in _STRATEGIES:
        raise AwsError("InvalidParameterValue", f"Invalid value '{strategy}' for strategy.")
    if name in call.records.placement_groups:
        raise AwsError("InvalidPlacementGroup.Duplicate", f"The placement group '{name}' already exists.")
    group = PlacementGroup(
        id=f"pg-{secrets.token_hex(8)}0",
        name=name,
        strategy=strategy,
        tags=call.tags_for("placement-group"),
        partitions=int(call.params.get("PartitionCount") or 0),
        spread_level=str(call.params.get("SpreadLevel") or ""),
    )
    call.records.placement_groups[name] = group
    if group.tags:
        call.backend.create_tags([group.id], group.tags)
    return {"PlacementGroup": _description(call, group)}


@RULES.action("DescribePlacementGroups")
def describe(call: ParsedRequest) -> dict[str, Any]:
    """Describe groups by name, id and filter."""
    groups = list(call.records.placement_groups.values())
    for requested, key in ((call.texts("GroupNames"), "name"), (call.texts("GroupIds"), "id")):
        known = {getattr(group, key) for group in groups}
        for missing in (value for value in requested if value not in known):
            raise AwsError("InvalidPlacementGroup.Unknown", f"The placement group '{missing}' is unknown.")
        groups = [group for group in groups if not requested or getattr(group, key) in requested]
    for name, values in call.filters().items():
        groups = [group for group in groups if _matches(call, group, name, values)]
    rows, _ = paginate_rows([_description(call, group) for group in groups], call.params)
    return {"PlacementGroups": rows}


@RULES.action("DeletePlacementGroup")
def delete(call: ParsedRequest) -> dict[str, Any]:
    """Delete a group unless an instance that is not terminated uses it."""
    name = str(call.params.get("GroupName") or "")
    group = find(call, name)
    unterminated = [instance for instance in call.backend.all_instances() if instance.state != "terminated"]
    if any(instance.placement.group_name == name for instance in unterminated):
        raise AwsError("InvalidPlacementGroup.InUse", f"The placement group '{name}' is in use and may not be deleted.")
    del call.records.placement_groups[name]
    call.backend.tags.pop(group.id, None)
    return {}


def find(call: ParsedRequest, name: str) -> PlacementGroup:
    """Return the group with this name or id."""
    for group in call.records.placement_groups.values():
        if name in (group.name, group.id):
            return group
    raise AwsError("InvalidPlacementGroup.Unknown", f"The placement group '{name}' is unknown.")


def _tags(call: ParsedRequest, group: PlacementGroup) -> dict[str, str]:
    return dict(call.backend.tags.get(group.id, {}))


def _matches(call: ParsedRequest, group: PlacementGroup, name: str, values: list[str]) -> bool:
    tags = _tags(call, group)
    if name.startswith("tag:"):
        return tags.get(name[4:]) in values
    attributes = {
        "group-name": [group.name],
        "strategy": [group.strategy],
        "state": ["available"],
        "tag-key": list(tags),
        "group-arn": [_arn(call, group)],
    }
    if name not in attributes:
        raise AwsError("InvalidParameterValue", f"The filter '{name}' is invalid")
    return any(value in values for value in attributes[name])


def _arn(call: ParsedRequest, group: PlacementGroup) -> str:
    return f"arn:aws:ec2:{call.region}:{call.backend.account_id}:placement-group/{group.name}"


def _description(call: ParsedRequest, group: PlacementGroup) -> dict[str, Any]:
    row: dict[str, Any] = {
        "GroupName": group.name,
        "GroupId": group.id,
        "GroupArn": _arn(call, group),
        "Strategy": group.strategy,
        "State": "available",
        "Tags": tag_list(_tags(call, group)),
    }
    if group.partitions:
        row["PartitionCount"] = group.partitions
    if group.spread_level:
        row["SpreadLevel"] = group.spread_level
    return row
