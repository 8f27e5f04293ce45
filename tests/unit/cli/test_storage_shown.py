"""Exact output of `storage create`, `storage list` and `storage delete`."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from cloudgpu.backends.storage import CreatedStorage, DeletedStorage, RetainedResource, StorageRequest
from cloudgpu.catalog.prices_and_quotas import storage_price
from cloudgpu.cli.commands.storage import (
    created_json,
    created_lines,
    creation_question,
    deleted_lines,
    deletion_question,
    storage_lines,
    subnet_lines,
)
from cloudgpu.cli.main import main
from cloudgpu.cloud import StoragePart, TaggedStorage
from cloudgpu.plan.network_access import NetworkRequest
from cloudgpu.plan.subnets import MountSubnets, RegionNetwork, SubnetDecision, SubnetSeen
from cloudgpu.state.storage_records import StorageRecord

PRICE = storage_price("lustre", "us-east-1", "scratch_2")


@pytest.fixture
def record(now):
    return StorageRecord(
        name="sets",
        kind="lustre",
        token="t",
        owner="ann",
        team="vision",
        target="aws",
        account="123456789012",
        endpoint="",
        region="us-east-1",
        created_at=now,
        disposable=False,
        state="ready",
        outputs={
            "id": "fs-1",
            "address": "fs-1.fsx",
            "mountName": "mnt",
            "securityGroupId": "sg-1",
            "zone": "us-east-1c",
        },
    )


@pytest.fixture
def row(now):
    return RetainedResource(
        noun="storage",
        name="sets",
        token="t",
        kind="lustre",
        region="us-east-1",
        owner="ann",
        state="available",
        disposable=False,
        size_gib=Decimal(1200),
        monthly_usd=Decimal("168.00"),
        since=now - timedelta(days=3),
        users=("i-1 (cluster demo)", "i-2 (cluster demo)"),
        simulated=False,
        id="fs-1",
    )


def test_storage_creation_prompt_shows_the_price():
    lustre = StorageRequest("sets", "lustre", "us-east-1", False, {"zone": "us-east-1c", "sizeGib": "1200"})
    assert creation_question(lustre, PRICE, Decimal("168.00"), simulated=False) == (
        "Create lustre storage sets of 1200 GiB in us-east-1c: $168.00 a month?"
    )
    files = StorageRequest("home", "efs", "us-east-1", False, {})
    assert creation_question(files, storage_price("efs", "us-east-1"), None, simulated=True) == (
        "Create efs storage home in us-east-1: AWS would charge $0.3000 a month per GiB stored?"
    )
    assert creation_question(replace(files, region="us-west-2"), None, None, simulated=False) == (
        "Create efs storage home in us-west-2: an unknown price in this region?"
    )


def test_created_storage_is_shown_with_usage_and_cost(record):
    assert created_lines(CreatedStorage(record, made=True), PRICE, Decimal("168.00")) == [
        "lustre storage sets is ready",
        "  id: fs-1",
        "  zone: us-east-1c",
        "  address: fs-1.fsx",
        "  mount name: mnt",
        "  security group for nodes that mount it: sg-1",
        "  costs: $168.00 a month until it is deleted",
        "  in a recipe: storage: [{name: sets, to: /data/sets}]",
        "  deleting a cluster does not delete the storage; to delete it: cloudgpu storage delete sets --delete-data",
    ]
    simulated = replace(record, target="rehearsal", kind="s3", disposable=True, outputs={"id": "b", "url": "s3://b"})
    assert created_lines(CreatedStorage(simulated, made=False), storage_price("s3", "us-east-1"), None) == [
        "s3 storage sets already exists and matches the request (simulated)",
        "  id: b",
        "  url: s3://b",
        "  costs: AWS would charge $0.0230 a month per GiB stored until it is deleted",
        "  in a recipe: storage: [{name: sets, to: /data/sets}]",
        "  deleting a cluster does not delete the storage; to delete it: cloudgpu storage delete sets",
    ]


def test_subnets_are_shown_before_and_after_the_creation(record):
    public = SubnetSeen("subnet-2", "us-east-1c", is_default=True, way_out="public", target="igw-1")
    refused = SubnetDecision(None, "us-east-1d: subnet-3 has no default route, but none to an internet gateway")
    default = RegionNetwork("vpc-1", is_default=True)
    chosen = MountSubnets(default, {"us-east-1c": public}, {"us-east-1d": refused})
    assert subnet_lines(chosen, NetworkRequest()) == [
        "subnets: the default VPC vpc-1: subnet-2 in us-east-1c: default subnet, a route to the internet gateway igw-1",
        f"not mountable in us-east-1d: {refused.why}",
    ]
    unread = MountSubnets(RegionNetwork(unknown="access denied"), {}, {})
    assert subnet_lines(unread, NetworkRequest(create_vpc=True)) == [
        "subnets: unknown, the lowest ID of each zone is used: access denied",
        "clusters with these settings get a VPC of their own and cannot mount the storage",
    ]
    assert subnet_lines(None, NetworkRequest(create_vpc=True)) == []
    pinned = CreatedStorage(replace(record, config={"subnetIds": '["subnet-2"]'}), made=True)
    assert "  subnets: subnet-2" in created_lines(pinned, PRICE, Decimal("168.00"))
    assert created_json(pinned, None)["subnets"] == ["subnet-2"]


def test_created_storage_json_has_the_documented_fields(record):
    assert created_json(CreatedStorage(record, made=True), Decimal("168.00")) == {
        "name": "sets",
        "kind": "lustre",
        "made": True,
        "region": "us-east-1",
        "disposable": False,
        "id": "fs-1",
        "zone": "us-east-1c",
        "address": "fs-1.fsx",
        "mount_name": "mnt",
        "security_group_id": "sg-1",
        "url": None,
        "subnets": [],
        "monthly_usd": "168.00",
        "simulated": False,
        "left": ["storage sets exists until you delete it"],
    }


def test_storage_list_shows_size_cost_and_users(row, now):
    unknown = replace(
        row, name="far", kind="s3", disposable=True, size_gib=None, monthly_usd=None, users=None, since=None
    )
    small = replace(row, name="home", kind="efs", size_gib=Decimal("0.25"), monthly_usd=Decimal("0.075"), users=())
    assert storage_lines([unknown, small, row], now) == [
        "name  kind         size  $/month      age  region     owner  data        used by"
        "                                 state",
        "far   s3        unknown  unknown  unknown  us-east-1  ann    disposable  unknown"
        "                                 available",
        "home  efs     0.250 GiB  $0.0750      3 d  us-east-1  ann    keep        none  "
        "                                  available",
        "sets  lustre   1200 GiB  $168.00      3 d  us-east-1  ann    keep        i-1 (cluster demo), "
        "i-2 (cluster demo)  available",
        "",
        "$168.08 a month, plus 1 storage resource of unknown cost; capacity only, at list prices",
    ]
    assert storage_lines([replace(row, simulated=True)], now)[-1] == (
        "$168.00 a month; capacity only, at list prices (simulated; nothing is charged)"
    )
    assert storage_lines([], now) == ["no storage"]


def test_storage_row_is_written_as_json(row):
    assert row.storage_json() == {
        "name": "sets",
        "kind": "lustre",
        "region": "us-east-1",
        "owner": "ann",
        "state": "available",
        "disposable": False,
        "made_for": "",
        "size_gib": "1200",
        "monthly_usd": "168.00",
        "created_at": "2026-11-18T03:30:00Z",
        "used_by": ["i-1 (cluster demo)", "i-2 (cluster demo)"],
        "id": "fs-1",
        "simulated": False,
    }


def test_storage_deletion_prompt_and_result_are_shown():
    tags = {"cloudgpu:kind": "lustre"}
    present = TaggedStorage(
        "sets", "t", "us-east-1", (StoragePart("lustre", "fs-1", "us-east-1", tags, size_gib=Decimal(1200)),)
    )
    assert deletion_question(present) == "Delete lustre storage sets (1200 GiB) and all its data?"
    half = TaggedStorage("sets", "t", "us-east-1", (StoragePart("security-group", "sg-1", "us-east-1", tags),))
    assert deletion_question(half) == "Delete lustre storage sets (of unknown size) and all its data?"
    assert deleted_lines(DeletedStorage("sets", known=True, parts=("lustre fs-1 in us-east-1",))) == [
        "storage sets is deleted, verified by tag search",
        "  lustre fs-1 in us-east-1",
    ]
    assert deleted_lines(DeletedStorage("sets", known=False)) == [
        "there is no storage sets: no resource has its tag; nothing to delete"
    ]


def test_invalid_storage_options_exit_2_before_any_action(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path))
    assert main(["storage", "create", "sets", "--kind", "ebs", "--yes"]) == 2
    assert "a volume requires --size" in capsys.readouterr().err
    assert main(["storage", "create", "sets", "--kind", "tape", "--yes"]) == 2
    assert "tape" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
