"""Handlers and lookups meet answers that lack what they need."""

from datetime import UTC, datetime
from typing import Any

import pytest

from cloudgpu.aws.ec2.baked_images import OwnImage, find_orphaned_snapshots
from cloudgpu.aws.pricing import quotas
from cloudgpu.aws.resources.base import HandlerContext
from cloudgpu.aws.resources.registry import handler, invoke
from cloudgpu.aws.session.errors import UNREACHABLE
from cloudgpu.errors import CloudError
from tests.unit.fuzz.shapes import FakeClients


class _Bare:
    """Clients whose every answer is an empty one."""

    region = "us-east-1"

    def client(self, _service: str) -> "_Bare":
        return self

    def __getattr__(self, _operation: str) -> Any:
        return lambda **_request: {}


@pytest.mark.parametrize("operation", ["read", "find", "create", "update"])
def test_a_handler_that_cannot_read_an_answer_says_so(operation, clock):
    one, ctx = handler("aws:ec2/keyPair:KeyPair"), HandlerContext(_Bare(), clock, "t", {})  # type: ignore[arg-type]
    inputs = {"keyName": "lab", "publicKey": "ssh-ed25519 AAAA"}
    given = {"read": ("lab",), "find": (inputs,), "create": (inputs,), "update": ("lab", inputs, inputs)}
    with pytest.raises(CloudError, match="keyPair:KeyPair: malformed response: 'KeyPairs' is missing") as err:
        getattr(one, operation)(ctx, *given[operation])
    assert err.value.code == UNREACHABLE


def test_a_lookup_that_cannot_read_an_answer_says_so():
    with pytest.raises(CloudError, match="getVpc: malformed response: 'Vpcs' is missing"):
        invoke("aws:ec2/getVpc:getVpc", {}, _Bare())  # type: ignore[arg-type]


def test_a_negative_limit_is_unknown():
    rows = [("L-417A185B", "Running On-Demand P instances", -1.0), ("L-2", "Running On-Demand Q instances", 8.0)]
    answer = {"Quotas": [{"QuotaCode": code, "QuotaName": name, "Value": value} for code, name, value in rows]}
    assert quotas.vcpu_limits(FakeClients(answer)) == {"L-2": 8}  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"CoreCount": -1, "ThreadsPerCore": 2}, {"CoreCount": 2**31, "ThreadsPerCore": 1}])
def test_cores_that_no_machine_has_are_those_of_the_type(scripted, options):
    row = {"InstanceType": "p4d.24xlarge", "CpuOptions": options}
    scripted.stub("ec2").add_response("describe_instances", {"Reservations": [{"Instances": [row]}]})
    assert list(quotas.vcpus_in_use(scripted, lambda _: 96).values()) == [96]


@pytest.mark.parametrize(
    ("since", "made_at"),
    [
        (datetime.fromisoformat("2026-11-22T12:00:00+01:00"), datetime(2026, 11, 22, 11, tzinfo=UTC)),
        (datetime.min.replace(tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_snapshot_without_its_image_is_as_old_as_its_start_time_in_utc(scripted, since, made_at):
    row = {"SnapshotId": "snap-2", "StartTime": since, "VolumeSize": 8, "Tags": []}
    scripted.stub("ec2").add_response("describe_snapshots", {"Snapshots": [row]})
    (found,) = find_orphaned_snapshots(scripted, "", ())
    assert isinstance(found, OwnImage)
    assert (found.made_at, found.made_at.utcoffset()) == (made_at, UTC.utcoffset(None))
