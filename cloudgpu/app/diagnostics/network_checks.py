"""Check the VPC that new clusters would use: its subnets in each zone, and where their routes lead."""

from collections.abc import Iterator, Mapping, Sequence

from cloudgpu.app.diagnostics.check import Diagnosis, State
from cloudgpu.backends.base import AccountQueries
from cloudgpu.errors import CloudGpuError
from cloudgpu.plan.network_access import GATEWAYS, NetworkRequest
from cloudgpu.plan.subnets import RegionNetwork, SubnetSeen, WayOut
from cloudgpu.text import command, plural

_STATES: Mapping[WayOut, State] = {"none": "warning", "unknown": "unknown"}
"""State of a subnet by its default route; `ok` for every other route."""
_SHOWN = 3
"""Maximum number of subnets listed on one line."""


def network_checks(account: AccountQueries, region: str, request: NetworkRequest) -> Iterator[Diagnosis]:
    """Yield the checks of the VPC and its subnets."""
    if request.create_vpc or request.public_address in GATEWAYS:
        yield Diagnosis("VPC", "ok", "each cluster gets a new VPC")
        return
    try:
        network, zones = account.network(request), account.zones()
    except CloudGpuError as err:
        yield Diagnosis("VPC", "unknown", err.message, err.hint)
        return
    if network.unknown:
        yield Diagnosis("VPC", "unknown", network.unknown)
    elif network.missing:
        create = command("aws", "ec2", "create-default-vpc", "--region", region)
        fix = f"set vpc_id, set create_vpc to true, or run `{create}`" if network.is_default else "correct the setting"
        yield Diagnosis("VPC", "failed", network.missing, fix)
    else:
        yield Diagnosis("VPC", "ok", network.name.removeprefix("the ") + f" in {region}")
        yield from _subnets(network, zones)


def _subnets(network: RegionNetwork, zones: Sequence[str]) -> Iterator[Diagnosis]:
    """Yield the subnets by the target of their default routes, and the zones without a subnet."""
    kind = "default subnet" if network.is_default else "subnet"
    subnets = [subnet for subnet in network.subnets if subnet.is_default or not network.is_default]
    by_route: dict[str, list[SubnetSeen]] = {}
    for subnet in subnets:
        by_route.setdefault(subnet.unusable or subnet.route, []).append(subnet)
    for route, members in by_route.items():
        names = [f"{subnet.id} in {subnet.zone}" for subnet in members]
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        state: State = "warning" if members[0].unusable else _STATES.get(members[0].way_out, "ok")
        yield Diagnosis(
            "subnets", state, f"{plural(len(members), kind)} with {route}: {', '.join(names[:_SHOWN])}{more}"
        )
    empty = [zone for zone in zones if zone not in {subnet.zone for subnet in network.subnets}]
    if empty:
        create = command("aws", "ec2", "create-default-subnet", "--availability-zone", empty[0])
        fix = f"`{create}`" if network.is_default else "create a subnet there, to use the zone"
        yield Diagnosis("subnets", "warning", f"no {kind} in {', '.join(empty)}", fix)
