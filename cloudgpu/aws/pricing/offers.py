"""Find the zones where an instance type is offered, querying all regions in parallel."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cloudgpu.aws.ec2.instance_types import GPU_FAMILIES
from cloudgpu.aws.session.errors import answered
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import AuthError
from cloudgpu.plan.plan import Quotes

_AT_ONCE = 8
_FILTER_VALUES = 200
_DENIED = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"})


def quotes(clients_for: Callable[[str], Clients], wanted: Sequence[tuple[str, str]]) -> Quotes:
    """Return the zones of each (instance type, region); empty if the type is retired or unknown there.

    A region without the required permission is left out, and the reason is returned.

    Raises:
        CloudError: A region failed for another reason or cannot be reached.
    """
    regions = sorted({region for _, region in wanted})
    types = {region: sorted({name for name, where in wanted if where == region}) for region in regions}
    with ThreadPoolExecutor(_AT_ONCE) as workers:
        answers = workers.map(lambda region: _offered_or_why(clients_for(region), types[region]), regions)
        told = dict(zip(regions, answers, strict=True))
    offered = {region: found for region, found in told.items() if not isinstance(found, str)}
    zones = {
        (name, region): tuple(sorted(offered[region].get(name, ()))) for name, region in wanted if region in offered
    }
    return Quotes(
        zones=zones, live=True, zones_unknown={region: why for region, why in told.items() if isinstance(why, str)}
    )


def zones(clients: Clients) -> dict[str, tuple[str, ...]]:
    """Return the zones of every GPU instance type that a region offers.

    Raises:
        CloudError: AWS refused or cannot be reached.
    """
    with answered(f"asking which zones of {clients.region} offer GPU instances"):
        found = _zones(clients, GPU_FAMILIES)
    return {name: tuple(sorted(where)) for name, where in sorted(found.items())}


def free_addresses(clients_for: Callable[[str], Clients], regions: Sequence[str]) -> dict[str, int]:
    """Return how many more Elastic IPs the account can allocate, by region, without regions that do not report it.

    Raises:
        CloudError: AWS cannot be reached in one of the regions.
    """
    with ThreadPoolExecutor(_AT_ONCE) as workers:
        answers = workers.map(lambda region: _free(clients_for(region)), regions)
        return {region: free for region, free in zip(regions, answers, strict=True) if free is not None}


def _free(clients: Clients) -> int | None:
    """Return the number of free addresses, or None without permission. Planning works without it."""
    ec2 = clients.client("ec2")
    try:
        with answered(f"asking how many Elastic IPs {clients.region} has"):
            told = ec2.describe_account_attributes(AttributeNames=["vpc-max-elastic-ips"])["AccountAttributes"]
            had = len(ec2.describe_addresses()["Addresses"])
            allowed = [int(value["AttributeValue"]) for attribute in told for value in attribute["AttributeValues"]]
    except AuthError:
        return None
    return max(0, allowed[0] - had) if allowed else None


def _offered_or_why(clients: Clients, types: Sequence[str]) -> dict[str, set[str]] | str:
    """Return the types that a region offers, or why permission is missing. Invalid or expired credentials raise."""
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
        with answered(f"asking which zones of {clients.region} offer {', '.join(types)}"):
            zones |= _zones(clients, filters)
    return zones


def _zones(clients: Clients, filters: Sequence[Mapping[str, Any]]) -> dict[str, set[str]]:
    zones: dict[str, set[str]] = {}
    paginator = clients.client("ec2").get_paginator("describe_instance_type_offerings")
    for page in paginator.paginate(LocationType="availability-zone", Filters=filters):
        for offering in page["InstanceTypeOfferings"]:
            zones.setdefault(offering["InstanceType"], set()).add(offering["Location"])
    return zones
