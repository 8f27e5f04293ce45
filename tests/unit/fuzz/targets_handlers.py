"""Fuzz targets for AWS responses to the resource handlers and lookups of the direct engine."""

import contextlib
from typing import Any

from cloudgpu.aws.resources.handler import HandlerContext
from cloudgpu.aws.resources.registry import HANDLERS, LOOKUPS, invoke
from cloudgpu.errors import CloudGpuError
from tests.manual_clock import ManualClock
from tests.unit.fuzz.hostile import values
from tests.unit.fuzz.shapes import NOW
from tests.unit.fuzz.target import Target
from tests.unit.fuzz.targets_aws import _STORED, _clients

_INPUTS = {
    name: "a"
    for name in (
        *("name", "keyName", "publicKey", "cidrBlock", "vpcId", "subnetId", "allocationId", "networkInterfaceId"),
        *(
            "domain",
            "role",
            "policy",
            "groupName",
            "roleName",
            "bucket",
            "fileSystemId",
            "availabilityZone",
            "strategy",
        ),
        *("strategy", "associationId", "routeTableId", "instanceId", "serviceName", "creationToken", "fileSystemPath"),
    )
}
_DESCRIBED = {
    **_STORED,
    "GroupName": "a",
    "Role": {"RoleName": "a", "Arn": "arn:a", "RoleId": "a", "CreateDate": NOW.isoformat(), "Tags": []},
    "InstanceProfile": {"InstanceProfileName": "a", "Arn": "arn:a", "Roles": [], "CreateDate": NOW.isoformat()},
    "PolicyDocument": "%7B%7D",
    "Arn": "arn:a",
    "Name": "a",
    "State": "ACTIVE",
    "Target": {"Arn": "arn:a", "RoleArn": "arn:a"},
    "Parameter": {"Name": "/p", "Value": "ami-1"},
    "Images": [{"ImageId": "ami-1", "CreationDate": "2026-11-22T12:00:00.000Z"}],
    "AvailabilityZones": [{"ZoneName": "us-east-1a"}],
    "Account": "123456789012",
    "UserId": "a",
}


def _handled(answer: Any) -> None:
    """Let every handler read, find and delete a resource, and call every lookup."""
    for one in HANDLERS.values():
        ctx = HandlerContext(_clients(answer), _Ticking(NOW), "token", {})
        for operation in (
            lambda one=one, ctx=ctx: one.read(ctx, "a"),
            lambda one=one, ctx=ctx: one.find(ctx, _INPUTS),
            lambda one=one, ctx=ctx: one.delete(ctx, "a", {}),
        ):
            with contextlib.suppress(CloudGpuError):
                found = operation()
                assert found is None or isinstance(found.id, str)
    for token in LOOKUPS:
        with contextlib.suppress(CloudGpuError):
            assert isinstance(invoke(token, {"name": "/p"} if "Parameter" in token else {}, _clients(answer)), dict)


class _Ticking(ManualClock):
    """A clock on which every wait lasts at least an hour, so that timeouts pass at once."""

    def sleep(self, seconds: float) -> None:
        super().sleep(max(seconds, 3600.0))


TARGETS = (Target("resource handlers", values(_DESCRIBED), _handled),)
