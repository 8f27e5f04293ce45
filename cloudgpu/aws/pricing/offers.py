"""Query regions in parallel for the zones that offer an instance type, and for the number of free Elastic IPs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cloudgpu.aws.ec2.instances import GPU_FAMILIES
from cloudgpu.aws.session.errors import convert_response_errors
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import AuthError
from cloudgpu.plan.plan import Quotes
from cloudgpu.workers import Workers

_AT_ONCE = 8
_FILTER_VALUES = 200
_DENIED = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"})


def quotes(clients_for: Callable[[str], Clients], pairs: Sequence[tuple[str, str]]) -> Quotes:
    """Return the zones of the region that offer the instance type, for each (instance type, region) pair.

    The zones are empty if the region does not offer the type. If the caller lacks the permission in a region, the
    region is omitted from `zones`, and `zones_unknown` contains the reason.
    """
    regions = sorted({region for _, region in pairs})
    types = {region: sorted({name for name, where in pairs if where == region}) for region in regions}
    with Workers(_AT_ONCE) as workers:
        results = workers.map(lambda region: _offered_or_error(clients_for(region), types[region]), regions)
        by_region = dict(zip(regions, results, strict=True))
    offered = {region: result for region, result in by_region.items() if not isinstance(result, str)}
    zones = {
        (name, region): tuple(sorted(offered[region].get(name, ()))) for name, region in pairs if region in offered
    }
    return Quotes(
        zones=zones, live=True, zones_unknown={region: why for region, why in by_region.items() if isinstance(why, str)}
    )


def zones(clients: Clients) -> dict[str, tuple[str, ...]]:
    """Return the zones in which the region offers each GPU instance type."""
    with convert_response_errors(f"listing the zones of {clients.region} that offer GPU instances"):
        offerings = _zones(clients, GPU_FAMILIES)
    return {name: tuple(sorted(zone_names)) for name, zone_names in sorted(offerings.items())}


def free_addresses(clients_for: Callable[[str], Clients], regions: Sequence[str]) -> dict[str, int]:
    """Return how many more Elastic IPs the account can allocate in each region whose limit is known."""
    with Workers(_AT_ONCE) as workers:
        limits = workers.map(lambda region: _free_addresses(clients_for(region)), regions)
        return {region: free for region, free in zip(regions, limits, strict=True) if free is not None}


def _free_addresses(clients: Clients) -> int | None:
    """Return how many more Elastic IPs the account can allocate, or None if AWS denies access or reports no limit."""
    ec2 = clients.client("ec2")
    try:
        with convert_response_errors(f"reading the Elastic IP limit in {clients.region}"):
            attributes = ec2.describe_account_attributes(AttributeNames=["vpc-max-elastic-ips"])["AccountAttributes"]
            in_use = len(ec2.describe_addresses()["Addresses"])
            allowed = [
                int(value["AttributeValue"]) for attribute in attributes for value in attribute["AttributeValues"]
            ]
    except AuthError:
        return None
    return max(0, allowed[0] - in_use) if allowed else None


def _offered_or_error(clients: Clients, types: Sequence[str]) -> dict[str, set[str]] | str:
    """Return the zones of each type, or the error message if a permission is missing."""
    try:
        return _offered(clients, types)
    except AuthError as err:
        if err.code not in _DENIED:
            raise
        return err.message


def _offered(clients: Clients, types: Sequence[str]) -> dict[str, set[str]]:
    zones: dict[str, set[str]] = {}
    for start in range(0, len(types), _FILTER_VALUES):
        filters = [{"Name": "instance-type", "Values": list(types[start : start + _FILTER_VALUES])}]
        with convert_response_errors(f"listing the zones of {clients.region} that offer {', '.join(types)}"):
            zones |= _zones(clients, filters)
    return zones


def _zones(clients: Clients, filters: Sequence[Mapping[str, Any]]) -> dict[str, set[str]]:
    zones: dict[str, set[str]] = {}
    paginator = clients.client("ec2").get_paginator("describe_instance_type_offerings")
    for page in paginator.paginate(LocationType="availability-zone", Filters=filters):
        for offering in page["InstanceTypeOfferings"]:
            zones.setdefault(offering["InstanceType"], set()).add(offering["Location"])
    return zones
