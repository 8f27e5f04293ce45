"""The config values of the cluster program."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from cloudgpu.engine.config import stack_config
from cloudgpu.errors import UsageError
from cloudgpu.plan.plan import Candidate

CANDIDATE = Candidate(
    instance_type="p3dn.24xlarge",
    region="us-east-1",
    zone="us-east-1c",
    market="on-demand",
    node_hourly_usd=Decimal("31.212"),
    priced_on=date(2026, 7, 20),
    gpu="V100",
    gpus_per_node=8,
    gpu_memory_gib=Decimal(32),
    efa_interfaces=1,
    image="/aws/service/x",
)


def config(**changes):
    given = {
        "cluster": "demo",
        "owner": "ada",
        "team": "vision",
        "run": "r-1",
        "expires_at": datetime(2026, 11, 21, 5, tzinfo=UTC),
        "token": "tok",
        "candidate": CANDIDATE,
        "nodes": 2,
        "public_key": "ssh-ed25519 AAAA",
        "ssh_cidr": "203.0.113.5/32",
        "disk_gib": 200,
    }
    return stack_config(**{**given, **changes})


def test_stack_config_contains_every_setting():
    assert config(bootstrap="#!/bin/sh\n", program_settings={"vpcId": "vpc-1", "keyName": ""}) == {
        "cluster": "demo",
        "owner": "ada",
        "team": "vision",
        "run": "r-1",
        "expiresAt": "2026-11-21T05:00:00Z",
        "token": "tok",
        "instanceType": "p3dn.24xlarge",
        "nodes": "2",
        "zone": "us-east-1c",
        "market": "on-demand",
        "publicKey": "ssh-ed25519 AAAA",
        "sshCidr": "203.0.113.5/32",
        "image": "/aws/service/x",
        "diskGib": "200",
        "efaInterfaces": "1",
        "vpcId": "vpc-1",
        "bootstrap": "#!/bin/sh\n",
    }


def test_expiry_is_written_in_utc():
    east = timezone(timedelta(hours=9))
    assert config(expires_at=datetime(2026, 11, 21, 14, tzinfo=east))["expiresAt"] == "2026-11-21T05:00:00Z"


def test_unknown_setting_is_rejected():
    with pytest.raises(UsageError, match="vpcID"):
        config(program_settings={"vpcID": "vpc-1"})


def test_subnet_of_the_plan_is_pinned_unless_the_user_selected_one():
    chosen = replace(CANDIDATE, subnet="subnet-1")
    assert config(candidate=chosen)["chosenSubnetId"] == "subnet-1"
    own = config(candidate=chosen, program_settings={"subnetId": "subnet-2"})
    assert (own["subnetId"], "chosenSubnetId" in own) == ("subnet-2", False)


def test_nodes_with_several_efa_interfaces_have_a_layout_and_others_have_none():
    assert config(candidate=replace(CANDIDATE, efa_interfaces=4))["efaLayout"] == "separate"
    earlier = config(candidate=replace(CANDIDATE, efa_interfaces=4), efa_layout="combined")
    assert earlier["efaLayout"] == "combined"
    assert "efaLayout" not in config()
    assert config(tags_in_call=True)["tagsInCall"] == "true"
