"""The resource types that the tag search covers, and the EC2 calls that list them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cloudgpu.cloud.resources import Kind, TaggedResource
from cloudgpu.errors import CloudGpuError

TERMINATED_STATES = frozenset({"terminated"})
TERMINATING_STATES = frozenset({"shutting-down", "terminated"})
SHUTDOWN_S = 3600
"""Limit for instances that are shutting down, which AWS no longer bills. The largest types take up to an hour."""


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
