"""Query fleets that another process launched."""

from collections.abc import Mapping
from typing import Any

from cloudgpu.aws.resources.fleet import incomplete_fleet_error
from cloudgpu.aws.session.errors import convert_response_errors
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import CloudGpuError, LaunchError


def shortfall_error(clients: Clients, fleet_id: str, *, got: int, wanted: int) -> CloudGpuError:
    """Return the error that explains why an `instant` fleet has too few instances, based on EC2's launch errors.

    If the error is a LaunchError, its `launched` lists the instances that were launched nevertheless.
    """
    with convert_response_errors(f"reading the launch errors of fleet {fleet_id}"):
        response = clients.client("ec2").describe_fleets(FleetIds=[fleet_id])
    fleet: Mapping[str, Any] = next(iter(response.get("Fleets") or ()), {})
    err = incomplete_fleet_error(fleet.get("Errors") or (), got, wanted)
    if isinstance(err, LaunchError):
        launched = [instance_id for row in fleet.get("Instances") or () for instance_id in row.get("InstanceIds") or ()]
        err.launched = tuple(sorted(launched))
    return err
