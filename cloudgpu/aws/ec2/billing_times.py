"""Query AWS for the start and end times of billed resources, so that the ledger does not depend on the caller's clock.

AWS lists terminated instances and deleted NAT gateways for about an hour. If an instance was terminated through the
API, its StateTransitionReason contains the time to the second. After a shutdown from inside the instance or a spot
interruption, StateTransitionReason does not contain a time. AWS does not list released Elastic IPs.

An instance is billed while it is `running`, not while it is `pending` or `shutting-down`. AWS does not report when an
instance began to run, so the time since its launch is an upper bound, some seconds too high.
"""

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from cloudgpu import bounds
from cloudgpu.aws.ec2.instances import describe_rows
from cloudgpu.aws.ec2.tagging import TERMINATING_STATES
from cloudgpu.aws.session.errors import convert_response_errors
from cloudgpu.aws.session.session import Clients
from cloudgpu.cloud import TOKEN_TAG

_TRANSITION = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")
_DELETED_STATES = frozenset({"deleted", "failed"})
_FAILED_TO_LAUNCH = frozenset(
    {
        "Client.InternalError",
        "Client.InvalidSnapshot.NotFound",
        "Client.VolumeLimitExceeded",
        "Server.InsufficientInstanceCapacity",
        "Server.InternalError",
    }
)
"""Codes in a StateReason that EC2 documents for instances that terminate during their launch."""


@dataclass(frozen=True)
class Lifetime:
    """The lifetime of one billed resource.

    Attributes:
        alive: Whether the resource is still billed.
        ended_at: Time of deletion; None while the resource is billed or if AWS does not report the time.
        never_ran: Whether the resource is an instance that failed before it ran, which AWS does not bill.
    """

    kind: Literal["instance", "nat-gateway", "elastic-ip"]
    id: str
    alive: bool
    started_at: datetime | None
    ended_at: datetime | None = None
    never_ran: bool = False


def instance_lifetimes(clients: Clients, ids: Sequence[str]) -> Mapping[str, Lifetime]:
    """Return each instance's lifetime, keyed by ID, omitting instances that AWS no longer lists."""
    with convert_response_errors(f"reading the termination times of instances in {clients.region}"):
        return {row["InstanceId"]: _of_instance(row) for row in describe_rows(clients, ids)}


def network_resource_lifetimes(clients: Clients, token: str) -> tuple[Lifetime, ...]:
    """Return the lifetimes of a cluster's NAT gateways and Elastic IPs, omitting resources that AWS no longer lists."""
    filters = [{"Name": f"tag:{TOKEN_TAG}", "Values": [token]}]
    ec2 = clients.client("ec2")
    with convert_response_errors(f"reading the deletion times of NAT gateways in {clients.region}"):
        pages = ec2.get_paginator("describe_nat_gateways").paginate(Filter=filters)
        gateways = [_of_gateway(gateway) for page in pages for gateway in page["NatGateways"]]
    with convert_response_errors(f"looking for Elastic IPs in {clients.region}"):
        rows = ec2.describe_addresses(Filters=filters)["Addresses"]
        addresses = [Lifetime("elastic-ip", address["AllocationId"], alive=True, started_at=None) for address in rows]
    return (*gateways, *addresses)


def transition_time(reason: str) -> datetime | None:
    """Return the time in a StateTransitionReason such as `User initiated (2026-11-21 05:00:00 GMT)`, or None."""
    match = _TRANSITION.search(reason)
    try:
        return bounds.parse_time(match[1]) if match else None
    except ValueError:
        return None


def _plausible_utc(at: datetime | None) -> datetime | None:
    """Return a time reported by AWS in UTC, or None if it is missing or implausible."""
    with contextlib.suppress(ValueError):
        return None if at is None else bounds.to_utc(at)
    return None


def _of_instance(row: Mapping[str, Any]) -> Lifetime:
    alive = row["State"]["Name"] not in TERMINATING_STATES
    ended_at = None if alive else transition_time(row.get("StateTransitionReason") or "")
    never_ran = not alive and (row.get("StateReason") or {}).get("Code") in _FAILED_TO_LAUNCH
    return Lifetime("instance", row["InstanceId"], alive, _plausible_utc(row["LaunchTime"]), ended_at, never_ran)


def _of_gateway(row: Mapping[str, Any]) -> Lifetime:
    created, deleted = row.get("CreateTime"), row.get("DeleteTime")
    return Lifetime(
        "nat-gateway",
        row["NatGatewayId"],
        alive=row.get("State") not in _DELETED_STATES,
        started_at=_plausible_utc(created),
        ended_at=_plausible_utc(deleted),
    )
