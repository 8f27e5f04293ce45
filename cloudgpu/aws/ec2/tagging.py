"""Convert tags between mappings and AWS's lists, and add or change the tags of EC2 resources."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from cloudgpu.aws.session.errors import convert_errors
from cloudgpu.aws.session.session import Clients

INTENT_TAG = "cloudgpu:intent"
"""Tag with the token of the call that created the resource, used to find a resource whose ID was never recorded."""
_AT_ONCE = 500
"""Resources per call; EC2 accepts up to 1,000."""
LAUNCHED_KINDS: Final = frozenset({"instance", "volume", "network-interface"})
"""Types of resources that EC2 creates and tags during a launch. The Pulumi program does not declare them."""


def to_tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Convert tags to AWS's list format, sorted by key so that repeated requests are identical."""
    return [{"Key": key, "Value": str(tags[key])} for key in sorted(tags)]


def tags_to_dict(tags: Iterable[Mapping[str, str]] | None) -> dict[str, str]:
    """Convert AWS's list of tags to a mapping."""
    return {tag["Key"]: tag["Value"] for tag in tags or ()}


def tag_specification(resource_type: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """Return one entry of `TagSpecifications`."""
    return {"ResourceType": resource_type, "Tags": to_tag_list(tags)}


def retag(clients: Clients, resource_id: str, old: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Change an EC2 resource's tags from `old` to `new`. Tags in neither mapping are left unchanged."""
    retag_all(clients, [resource_id], old, new)


def retag_all(clients: Clients, ids: Sequence[str], old: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Change the tags of several EC2 resources from `old` to `new`, in batches."""
    ec2 = clients.client("ec2")
    changed = {key: value for key, value in new.items() if old.get(key) != value}
    removed = [{"Key": key} for key in sorted(old.keys() - new.keys())]
    for start in range(0, len(ids), _AT_ONCE):
        chunk = list(ids[start : start + _AT_ONCE])
        with convert_errors(f"tagging {chunk[0] if len(chunk) == 1 else f'{len(chunk)} resources'}"):
            if changed:
                ec2.create_tags(Resources=chunk, Tags=to_tag_list(changed))
            if removed:
                ec2.delete_tags(Resources=chunk, Tags=removed)


class TaggedEc2Resource(Protocol):
    """An EC2 resource with its tags."""

    @property
    def kind(self) -> str:
        """Resource type, such as `instance` or `volume`."""

    @property
    def id(self) -> str:
        """Resource ID."""

    @property
    def tags(self) -> Mapping[str, str]:
        """Tags at the time of the last query."""


def add_missing_tags(clients: Clients, resources: Sequence[TaggedEc2Resource], tags: Mapping[str, str]) -> None:
    """Set the tags on every resource of a type in `LAUNCHED_KINDS` that lacks a tag or has a different value for it."""
    ids = sorted(
        resource.id
        for resource in resources
        if resource.kind in LAUNCHED_KINDS and not tags.items() <= dict(resource.tags).items()
    )
    for start in range(0, len(ids), _AT_ONCE):
        chunk = ids[start : start + _AT_ONCE]
        with convert_errors(f"tagging {chunk[0] if len(chunk) == 1 else f'{len(chunk)} resources'}"):
            clients.client("ec2").create_tags(Resources=chunk, Tags=to_tag_list(tags))
