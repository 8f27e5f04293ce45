"""CreateTags and DeleteTags, including for resources that moto lacks or whose tags it does not update."""

from typing import Any

from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, EC2_RESOURCE_TO_PREFIX

from cloudgpu.rehearsal.aws_api.rules import AwsError, ParsedRequest, rule
from cloudgpu.rehearsal.server.request_guard import MAX_TAGS

# DescribeTags derives the type of a resource from its ID, and moto's placement groups have none.
EC2_PREFIX_TO_RESOURCE["pg"] = "placement-group"
EC2_RESOURCE_TO_PREFIX["placement-group"] = "pg"


@rule("CreateTags")
def create_tags(call: ParsedRequest) -> dict[str, Any]:
    """Set tags on resources of any type; if one of the resources does not exist, the whole call fails."""
    ids = _existing_ids(call)
    tags = {row["Key"]: str(row.get("Value") or "") for row in call.params.get("Tags") or []}
    if any(key.startswith("aws:") for key in tags):
        raise AwsError("InvalidParameterValue", "Tag keys starting with 'aws:' are reserved for internal use")
    for resource_id in ids:
        if len({**call.backend.tags.get(resource_id, {}), **tags}) > MAX_TAGS:
            raise AwsError("TagLimitExceeded", f"{resource_id} would have more than the maximum of {MAX_TAGS} tags.")
    call.backend.create_tags(ids, tags)
    _update_copies(call, ids)
    return {}


@rule("DeleteTags")
def delete_tags(call: ParsedRequest) -> dict[str, Any]:
    """Delete tags; a tag that is specified without a value is deleted regardless of its value."""
    ids = _existing_ids(call)
    call.backend.delete_tags(ids, {row["Key"]: row.get("Value") for row in call.params.get("Tags") or []})
    _update_copies(call, ids)
    return {}


def _existing_ids(call: ParsedRequest) -> list[str]:
    ids = call.texts("Resources")
    if not ids:
        raise AwsError("MissingParameter", "The request must contain the parameter resourceIdSet")
    simulated = {group.id for group in call.records.placement_groups.values()} | call.records.fleets.keys()
    call.backend.do_resources_exist([resource_id for resource_id in ids if resource_id not in simulated])
    return ids


def _update_copies(call: ParsedRequest, ids: list[str]) -> None:
    """Update the copies of the tags that launch templates and placement groups store."""
    for resource_id in ids:
        tags = dict(call.backend.tags.get(resource_id, {}))
        if resource_id in call.backend.launch_templates:
            template = call.backend.launch_templates[resource_id]
            template.tags = template.get_tags()
        for group in call.records.placement_groups.values():
            if group.id == resource_id:
                group.tags = tags
