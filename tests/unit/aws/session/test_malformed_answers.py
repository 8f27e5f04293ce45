"""Handlers and lookups with AWS responses that lack required fields."""

from datetime import UTC, datetime
from typing import Any

import pytest

from cloudgpu.aws import prices_and_quotas
from cloudgpu.aws.ec2.machine_images import find_orphaned_snapshots
from cloudgpu.aws.resources.handler import HandlerContext
from cloudgpu.aws.resources.registry import handler, invoke
from cloudgpu.aws.session.errors import UNREACHABLE
from cloudgpu.cloud import OwnImage
from cloudgpu.errors import CloudError
from tests.unit.fuzz.shapes import FakeClients


class _Bare:
    """Clients that return an empty response to every call."""

    region = "us-east-1"

    def client(self, _service: str) -> "_Bare":
        return self

    def __getattr__(self, _operation: str) -> Any:
        return lambda **_request: {}


@pytest.mark.parametrize("operation", ["read", "find", "create", "update"])
def test_handler_reports_malformed_response(operation, clock):
    one, ctx = handler("aws:ec2/keyPair:KeyPair"), HandlerContext(_Bare(), clock, "t", {})  # type: ignore[arg-type]
    inputs = {"keyName": "lab", "publicKey": "ssh-ed25519 AAAA"}
    given = {"read": ("lab",), "find": (inputs,), "create": (inputs,), "update": ("lab", inputs, inputs)}
    with pytest.raises(CloudError, match="keyPair:KeyPair: malformed response: 'KeyPairs' is missing") as err:
        getattr(one, operation)(ctx, *given[operation])
    assert err.value.code == UNREACHABLE


def test_lookup_reports_malformed_response():
    with pytest.raises(CloudError, match="getVpc: malformed response: 'Vpcs' is missing"):
        invoke("aws:ec2/getVpc:getVpc", {}, _Bare())  # type: ignore[arg-type]


def test_negative_quota_is_unknown():
    rows = [("L-417A185B", "Running On-Demand P instances", -1.0), ("L-2", "Running On-Demand Q instances", 8.0)]
    answer = {"Quotas": [{"QuotaCode": code, "QuotaName": name, "Value": value} for code, name, value in rows]}
    assert prices_and_quotas.vcpu_limits(FakeClients(answer)) == {"L-2": 8}  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"CoreCount": -1, "ThreadsPerCore": 2}, {"CoreCount": 2**31, "ThreadsPerCore": 1}])
def test_impossible_core_count_falls_back_to_type_vcpus(scripted, options):
    row = {"InstanceType": "p4d.24xlarge", "CpuOptions": options}
    scripted.stub("ec2").add_response("describe_instances", {"Reservations": [{"Instances": [row]}]})
    assert list(prices_and_quotas.vcpus_in_use(scripted, lambda _: 96).values()) == [96]


@pytest.mark.parametrize(
    ("since", "made_at"),
    [
        (datetime.fromisoformat("2026-11-22T12:00:00+01:00"), datetime(2026, 11, 22, 11, tzinfo=UTC)),
        (datetime.min.replace(tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)),
    ],
)
def test_orphaned_snapshot_creation_time_is_start_time_in_utc(scripted, since, made_at):
    row = {"SnapshotId": "snap-2", "StartTime": since, "VolumeSize": 8, "Tags": []}
    scripted.stub("ec2").add_response("describe_snapshots", {"Snapshots": [row]})
    (found,) = find_orphaned_snapshots(scripted, "", ())
    assert isinstance(found, OwnImage)
    assert (found.made_at, found.made_at.utcoffset()) == (made_at, UTC.utcoffset(None))
