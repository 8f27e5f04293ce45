"""Tags of EC2 resources: convert, add and change them, and describe the resources that a tag search finds."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from cloudgpu.aws.session.errors import convert_errors
from cloudgpu.aws.session.session import Clients
from cloudgpu.cloud import Kind, TaggedResource
from cloudgpu.errors import CloudGpuError

INTENT_TAG = "cloudgpu:intent"
"""Tag with the token of the call that created the resource, used to find a resource whose ID was never recorded."""
_AT_ONCE = 500
"""Resources per call; EC2 accepts up to 1,000."""
LAUNCHED_KINDS: Final = frozenset({"instance", "volume", "network-interface"})
"""Types of resources that EC2 creates and tags during a launch. The Pulumi program does not declare them."""
TERMINATED_STATES = frozenset({"terminated"})
TERMINATING_STATES = frozenset({"shutting-down", "terminated"})
SHUTDOWN_S = 3600
"""Limit for instances that are shutting down, which AWS no longer bills. The largest types take up to an hour."""


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


@dataclass(frozen=True)
class SearchResult:
    """The result of a tag search.

    Attributes:
        found: Resources in deletion order.
        failures: Region (`global` for IAM) -> first error from a request that failed there. The results for such a
            region are incomplete, but every resource that they list exists.
        terminated: Terminated instances, which AWS lists for about an hour.
    """

    found: tuple[TaggedResource, ...] = ()
    failures: Mapping[str, CloudGpuError] = field(default_factory=dict)
    terminated: tuple[TaggedResource, ...] = ()

    def complete(self) -> tuple[TaggedResource, ...]:
        """Return the resources found, provided that every query succeeded."""
        for err in self.failures.values():
            raise err
        return self.found

    def merged(self, other: "SearchResult") -> "SearchResult":
        """Return a result that combines this one with `other`."""
        return SearchResult(
            (*self.found, *other.found),
            {**self.failures, **other.failures},
            (*self.terminated, *other.terminated),
        )


@dataclass(frozen=True)
class ResourceListing:
    """How to list an EC2 resource type: the API call, the response key of the list, and how to read an entry."""

    kind: Kind
    call: str
    plural: str
    id_key: str
    state: Callable[[Mapping[str, Any]], str] = lambda _: ""
    over: frozenset[str] = frozenset()
    """States that count as deleted: the resource is neither billed nor usable."""
    filters_key: str = "Filters"
    """Name of the call's filter parameter."""

    def ask(self, ec2: Any, filters: list[dict[str, Any]]) -> Iterator[Mapping[str, Any]]:  # noqa: ANN401
        """Yield the matching entries whose state is not in `over`, from all pages if the call is paginated."""
        if ec2.can_paginate(self.call):
            pages = ec2.get_paginator(self.call).paginate(**{self.filters_key: filters})
        else:
            pages = [getattr(ec2, self.call)(**{self.filters_key: filters})]
        for page in pages:
            for entry in self._entries(page):
                if self.state(entry) not in self.over:
                    yield entry

    def _entries(self, page: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        if self.kind == "instance":
            return (entry for reservation in page["Reservations"] for entry in reservation["Instances"])
        return iter(page[self.plural])


def _state(entry: Mapping[str, Any]) -> str:
    return str(entry.get("State") or "")


def _status(entry: Mapping[str, Any]) -> str:
    return str(entry.get("Status") or "")


def _instance_state(entry: Mapping[str, Any]) -> str:
    return str(entry["State"]["Name"])


LISTINGS: tuple[ResourceListing, ...] = (
    # Terminated instances are included because a fleet can only be found through its instances.
    ResourceListing("instance", "describe_instances", "", "InstanceId", _instance_state),
    ResourceListing(
        "nat-gateway",
        "describe_nat_gateways",
        "NatGateways",
        "NatGatewayId",
        _state,
        frozenset({"deleted", "failed"}),
        filters_key="Filter",
    ),
    ResourceListing("elastic-ip", "describe_addresses", "Addresses", "AllocationId"),
    ResourceListing(
        "network-interface", "describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId", _status
    ),
    ResourceListing("volume", "describe_volumes", "Volumes", "VolumeId", _state, frozenset({"deleting", "deleted"})),
    ResourceListing("launch-template", "describe_launch_templates", "LaunchTemplates", "LaunchTemplateId"),
    ResourceListing(
        "placement-group", "describe_placement_groups", "PlacementGroups", "GroupName", _state, frozenset({"deleted"})
    ),
    ResourceListing("security-group", "describe_security_groups", "SecurityGroups", "GroupId"),
    ResourceListing("key-pair", "describe_key_pairs", "KeyPairs", "KeyName"),
    ResourceListing(
        "vpc-endpoint", "describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId", _state, frozenset({"deleted"})
    ),
    ResourceListing("route-table", "describe_route_tables", "RouteTables", "RouteTableId"),
    ResourceListing("subnet", "describe_subnets", "Subnets", "SubnetId", _state),
    ResourceListing("internet-gateway", "describe_internet_gateways", "InternetGateways", "InternetGatewayId"),
    ResourceListing("vpc", "describe_vpcs", "Vpcs", "VpcId", _state),
)
