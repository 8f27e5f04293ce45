"""Tags: between the mapping that Pulumi knows and the lists that AWS wants."""

from collections.abc import Iterable, Mapping
from typing import Any

from cloudgpu.aws.faults import typed
from cloudgpu.aws.session import Clients

CLUSTER = "cloudgpu:cluster"
TOKEN = "cloudgpu:token"  # noqa: S105 the name of a tag
INTENT = "cloudgpu:intent"
"""The token of the one call that made this resource: by it a resource is adopted whose id was never recorded."""


def listed(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """As AWS takes them, sorted, so that a repeated call is the same call."""
    return [{"Key": key, "Value": str(tags[key])} for key in sorted(tags)]


def mapped(tags: Iterable[Mapping[str, str]] | None) -> dict[str, str]:
    """As Pulumi shows them."""
    return {tag["Key"]: tag["Value"] for tag in tags or ()}


def specification(resource_type: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """One entry of `TagSpecifications`."""
    return {"ResourceType": resource_type, "Tags": listed(tags)}


def retag(clients: Clients, resource_id: str, old: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Change the tags of an EC2 resource."""
    ec2 = clients.client("ec2")
    with typed(f"tagging {resource_id}"):
        changed = {key: value for key, value in new.items() if old.get(key) != value}
        if changed:
            ec2.create_tags(Resources=[resource_id], Tags=listed(changed))
        removed = [{"Key": key} for key in sorted(old.keys() - new.keys())]
        if removed:
            ec2.delete_tags(Resources=[resource_id], Tags=removed)
