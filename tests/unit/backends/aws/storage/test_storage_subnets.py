"""The subnets of new file systems: chosen once, recorded, and refused if none is suitable."""

import json
from dataclasses import replace

import pytest

from cloudgpu.errors import (
    PlanError,
)
from cloudgpu.plan.network_access import NetworkRequest
from cloudgpu.plan.subnets import RegionNetwork
from cloudgpu.state.storage_records import StorageRecords
from tests.unit.backends.aws.storage.conftest import REQUEST, VPC


def test_resumed_creation_uses_the_recorded_subnets(manager, cloud, home):
    chosen = manager.choose_subnets(REQUEST, NetworkRequest())
    record = manager.create(replace(REQUEST, subnets=chosen.ids)).record
    assert json.loads(cloud.stack.config["subnetIds"]) == ["subnet-2"]
    StorageRecords(home).save(record, state="making")
    assert manager.choose_subnets(REQUEST, NetworkRequest()) is None
    again = manager.create(replace(REQUEST, subnets={"us-east-1c": "subnet-1"}))
    assert json.loads(again.record.config["subnetIds"]) == ["subnet-2"]
    assert json.loads(cloud.stack.config["subnetIds"]) == ["subnet-2"]
    assert not manager.create(REQUEST).made


def test_storage_without_recorded_subnets_stays_where_it_is(manager, cloud):
    """A record of an earlier version."""
    manager.create(REQUEST)
    assert "subnetIds" not in cloud.stack.config
    assert manager.choose_subnets(REQUEST, NetworkRequest()) is None
    assert not manager.create(replace(REQUEST, subnets={"us-east-1c": "subnet-2"})).made


@pytest.mark.parametrize(
    ("vpc", "zone", "settings", "refusal"),
    [
        (
            VPC,
            "us-east-1d",
            {},
            ("vpc-1 has no subnet in us-east-1d", "create a subnet in us-east-1d"),
        ),
        (
            VPC,
            "us-east-1c",
            {"subnet_id": "subnet-9", "own_subnet": True, "own_network": True},
            ("subnet-9 is not in vpc-1", "change or remove the setting subnet_id"),
        ),
        (
            RegionNetwork(missing="us-east-1 has no default VPC", is_default=True),
            "us-east-1c",
            {},
            (
                "us-east-1 has no default VPC",
                "set vpc_id, set create_vpc to true, or run `aws ec2 create-default-vpc --region us-east-1`",
            ),
        ),
        (
            RegionNetwork(unknown="denied"),
            "us-east-1c",
            {"public_address": "private", "vpc_id": "vpc-1", "own_network": True},
            ("cannot tell which subnets of us-east-1 are private: denied", "set subnet_id"),
        ),
        (RegionNetwork("vpc-1"), "", {}, ("vpc-1 has no subnet", "")),
    ],
)
def test_file_system_without_a_suitable_subnet_is_refused(manager, cloud, vpc, zone, settings, refusal):
    cloud.vpc = vpc
    request = replace(REQUEST, kind="lustre" if zone else "efs", config={"zone": zone})
    with pytest.raises(PlanError) as refused:
        manager.choose_subnets(request, NetworkRequest(**settings))
    assert (list(refused.value.findings), refused.value.hint) == ([refusal[0]], refusal[1])
    assert cloud.calls == []
    assert manager.choose_subnets(replace(request, kind="s3"), NetworkRequest(**settings)) is None


def test_unreadable_vpc_leaves_the_choice_to_the_program(manager, cloud):
    cloud.vpc = RegionNetwork(unknown="denied")
    chosen = manager.choose_subnets(REQUEST, NetworkRequest())
    assert (chosen.ids, chosen.network.unknown) == ({}, "denied")
