"""Report when billed resources started and ended according to AWS, so that the ledger does not use the caller's clock.

AWS lists terminated instances and deleted NAT gateways for about an hour. The StateTransitionReason of an instance that
was terminated through the API has the time to the second; after a shutdown from within or an interruption it has none.
A released Elastic IP leaves no trace.
"""

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from cloudgpu import bounds
from cloudgpu.aws.ec2.instances import ENDING, described
from cloudgpu.aws.ec2.tagging import TOKEN
from cloudgpu.aws.session.errors import answered
from cloudgpu.aws.session.session import Clients

_TRANSITION = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")
_GONE = frozenset({"deleted", "failed"})


@dataclass(frozen=True)
class Lifetime:
    """The lifetime of one billed resource.

    Attributes:
        alive: True while it is billed.
        ended_at: None while it is alive, or if AWS does not report the time.
    """

    kind: Literal["instance", "nat-gateway", "elastic-ip"]
    id: str
    alive: bool
    started_at: datetime | None
    ended_at: datetime | None = None


def of_instances(clients: Clients, ids: Sequence[str]) -> Mapping[str, Lifetime]:
    """Return the lifetimes of these instances by ID, without those that AWS no longer lists.

    Raises:
        CloudError: AWS refused or cannot be reached.
    """
    with answered(f"asking when instances in {clients.region} ended"):
        return {row["InstanceId"]: _of_instance(row) for row in described(clients, ids)}


def of_network(clients: Clients, token: str) -> tuple[Lifetime, ...]:
    """Return the lifetimes of a cluster's NAT gateways and Elastic IPs; those that AWS has forgotten are left out.

    Raises:
        CloudError: AWS refused or cannot be reached.
    """
    filters = [{"Name": f"tag:{TOKEN}", "Values": [token]}]
    ec2 = clients.client("ec2")
    with answered(f"asking when the NAT gateways in {clients.region} ended"):
        pages = ec2.get_paginator("describe_nat_gateways").paginate(Filter=filters)
        gateways = [_of_gateway(gateway) for page in pages for gateway in page["NatGateways"]]
    with answered(f"looking for Elastic IPs in {clients.region}"):
        rows = ec2.describe_addresses(Filters=filters)["Addresses"]
        addresses = [Lifetime("elastic-ip", address["AllocationId"], alive=True, started_at=None) for address in rows]
    return (*gateways, *addresses)


def transition_time(reason: str) -> datetime | None:
    """Return the moment in a StateTransitionReason like `User initiated (2026-11-21 05:00:00 GMT)`, if it has one."""
    found = _TRANSITION.search(reason)
    try:
        return bounds.moment(found[1]) if found else None
    except ValueError:
        return None


def _known(at: datetime | None) -> datetime | None:
    """Return a time of AWS's as UTC; None for one that cannot be."""
    with contextlib.suppress(ValueError):
        return None if at is None else bounds.within_calendar(at)
    return None


def _of_instance(found: Mapping[str, Any]) -> Lifetime:
    alive = found["State"]["Name"] not in ENDING
    ended_at = None if alive else transition_time(found.get("StateTransitionReason") or "")
    return Lifetime("instance", found["InstanceId"], alive, _known(found["LaunchTime"]), ended_at)


def _of_gateway(found: Mapping[str, Any]) -> Lifetime:
    made, deleted = found.get("CreateTime"), found.get("DeleteTime")
    return Lifetime(
        "nat-gateway",
        found["NatGatewayId"],
        alive=found.get("State") not in _GONE,
        started_at=_known(made),
        ended_at=_known(deleted),
    )
