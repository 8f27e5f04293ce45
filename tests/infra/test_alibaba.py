"""The Alibaba program creates nodes with automatic release, and nothing is open to the internet."""

import base64
from pathlib import Path
from typing import Any

import pulumi
import pytest
from program_mock import Recorder, run_project

ALIBABA = Path(__file__).resolve().parents[2] / "infra" / "alibaba"
SETTINGS: dict[str, str | None] = {
    "cluster": "demo",
    "owner": "ada",
    "team": "lab",
    "run": "r-1",
    "expiresAt": "2026-11-21T05:00:00Z",
    "token": "tok-1",
    "instanceType": "ecs.gn6v-c8g1.16xlarge",
    "nodes": "2",
    "zone": "cn-hangzhou-i",
    "publicKey": "ssh-ed25519 AAAAC3Nza ada@laptop",
    "sshCidr": "198.51.100.7/32",
    "diskGib": "150",
    "nas": "true",
    "oss": "true",
}
TAGS = {
    "cloudgpu:cluster": "demo",
    "cloudgpu:owner": "ada",
    "cloudgpu:team": "lab",
    "cloudgpu:run": "r-1",
    "cloudgpu:expires-at": "2026-11-21T05:00:00Z",
    "cloudgpu:token": "tok-1",
}
UNTAGGABLE = (
    *("SecurityGroupRule", "HpcCluster", "AccessGroup", "AccessRule", "MountTarget"),
    *("BucketAcl", "BucketPublicAccessBlock", "BucketServerSideEncryption"),
)


class Account(Recorder):
    """An account with one image, and instances that get addresses."""

    images = ("ubuntu_22_04_x64_20G_alibase_20260901.vhd",)

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        made, outputs = super().new_resource(args)
        addresses = {"publicIp": "203.0.113.5", "primaryIpAddress": "10.85.0.5", "mountTargetDomain": "nas.example"}
        return made, {**outputs, **addresses}

    def call(self, args: pulumi.runtime.MockCallArgs) -> Any:
        self.calls.append(args)
        return {"images": [{"id": one} for one in self.images]}


def run_alibaba(**changes: str | None) -> Recorder:
    return run_project(ALIBABA, SETTINGS | changes, Account())


@pytest.fixture(scope="module")
def pair() -> Recorder:
    return run_alibaba()


def test_every_taggable_resource_has_every_tag(pair: Recorder) -> None:
    made = [one for one in pair.resources if one.typ.startswith("alicloud:") and not one.typ.endswith(UNTAGGABLE)]
    assert {one.typ.rsplit(":", 1)[1] for one in made} == {
        *("Network", "Switch", "SecurityGroup", "EcsKeyPair", "Instance", "FileSystem", "Bucket")
    }
    assert [one.typ for one in made if one.inputs.get("tags") != TAGS] == []
    assert [one["volumeTags"] for one in pair.of("Instance")] == [TAGS, TAGS]


def test_every_node_has_an_auto_release_time_at_its_expiry(pair: Recorder) -> None:
    nodes = pair.of("Instance")
    assert len(nodes) == 2
    for node in nodes:
        assert node["autoReleaseTime"] == "2026-11-21T05:00:00Z"
        assert node["instanceChargeType"] == "PostPaid"
        assert "stoppedMode" not in node, "a node that powers itself off may be billed, whatever this says"
        assert node["deletionProtection"] is False


def test_node_boothook_uses_the_same_expiry_timer_as_aws(pair: Recorder) -> None:
    text = base64.b64decode(pair.of("Instance")[0]["userData"]).decode()
    first = text.split("Content-Type: ")[2]
    assert first.startswith("text/cloud-boothook")
    assert "deadline=1795237200" in first


def test_port_22_is_open_only_to_the_caller(pair: Recorder) -> None:
    assert [(one["type"], one["portRange"], one["cidrIp"]) for one in pair.of("SecurityGroupRule")] == [
        ("ingress", "22/22", "198.51.100.7/32")
    ]
    assert pair.one("SecurityGroup")["innerAccessPolicy"] == "Accept"


def test_disks_are_encrypted_and_metadata_requires_a_token(pair: Recorder) -> None:
    for node in pair.of("Instance"):
        assert (node["systemDiskEncrypted"], node["systemDiskSize"]) == (True, 150)
        assert (node["httpEndpoint"], node["httpTokens"]) == ("enabled", "required")
        assert node["imageId"] == "ubuntu_22_04_x64_20G_alibase_20260901.vhd"
        assert "password" not in node


def test_storage_is_encrypted_and_not_public(pair: Recorder) -> None:
    assert pair.one("FileSystem")["encryptType"] == 1
    assert pair.one("AccessRule")["sourceCidrIp"] == "10.85.0.0/16"
    (vpc,) = [one for one in pair.resources if one.typ == "alicloud:vpc/network:Network"]
    assert vpc.inputs["cidrBlock"] == "10.85.0.0/16"
    assert pair.one("BucketAcl")["acl"] == "private"
    assert pair.one("BucketPublicAccessBlock")["blockPublicAccess"] is True
    assert pair.one("BucketServerSideEncryption")["sseAlgorithm"] == "AES256"
    assert pair.one("Bucket")["forceDestroy"] is False
    assert "versioning" not in pair.one("Bucket")
    assert run_alibaba(disposable="true").one("Bucket")["forceDestroy"] is True


@pytest.mark.parametrize("disposable", ["false", "true"])
def test_stack_deletion_retains_non_disposable_data(disposable: str, requests: dict[str, Any]) -> None:
    run_alibaba(disposable=disposable)
    kept = {name for name, request in requests.items() if request.retainOnDelete}
    closed = {"BucketAcl", "BucketPublicAccessBlock", "BucketServerSideEncryption"}
    assert kept == ({"FileSystem", "Bucket", *closed} if disposable == "false" else set())


def test_no_storage_is_created_by_default() -> None:
    recorder = run_alibaba(nas=None, oss=None)
    assert recorder.of("FileSystem") == recorder.of("Bucket") == []
    assert recorder.exports["nasAddress"] == ""


def test_exports_contain_the_fields_of_an_inventory(pair: Recorder) -> None:
    assert pair.exports == {
        "instanceIds": ["instance-id", "instance-id"],
        "addresses": ["203.0.113.5", "203.0.113.5"],
        "privateAddresses": ["10.85.0.5", "10.85.0.5"],
        "vpcId": "network-id",
        "vswitchId": "switch-id",
        "securityGroupId": "securitygroup-id",
        "nasId": "filesystem-id",
        "nasAddress": "nas.example",
        "bucket": "bucket-id",
    }


def test_only_rdma_nodes_join_an_hpc_cluster(pair: Recorder) -> None:
    recorder = run_alibaba(instanceType="ecs.sccgn6ne.24xlarge")
    assert recorder.one("HpcCluster")["name"].startswith("cloudgpu-demo-")
    assert {one["hpcClusterId"] for one in recorder.of("Instance")} == {"hpccluster-id"}
    assert pair.of("HpcCluster") == []


def test_spot_market_uses_spot_as_price_go(pair: Recorder) -> None:
    assert {one["spotStrategy"] for one in pair.of("Instance")} == {"NoSpot"}
    assert {one["spotStrategy"] for one in run_alibaba(market="spot").of("Instance")} == {"SpotAsPriceGo"}


def test_configured_image_is_used_without_lookup() -> None:
    recorder = run_alibaba(image="m-123")
    assert recorder.calls == []
    assert recorder.of("Instance")[0]["imageId"] == "m-123"


@pytest.mark.parametrize("name", ["ecs.gn5-c8g1.14xlarge", "ecs.gn5-c4g1.xlarge", "ecs.sccgn6.24xlarge"])
def test_alibaba_gpu_instance_type_is_accepted(name: str) -> None:
    assert run_alibaba(instanceType=name, nodes="1").one("Instance")["instanceType"] == name


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("instanceType", "ecs.g7.large"),
        ("sshCidr", "0.0.0.0/0"),
        ("sshCidr", "everywhere"),
        ("sshCidr", '["198.51.100.7/32", "0.0.0.0/0"]'),
        ("sshCidr", "[]"),
        ("expiresAt", "2026-11-21T05:00:30Z"),
        ("expiresAt", "tomorrow"),
        ("nodes", "0"),
        ("zone", "Hangzhou"),
        ("market", "futures"),
        ("nas", "yes"),
        ("cluster", "Demo"),
    ],
)
def test_invalid_setting_is_reported_by_name(key: str, value: str) -> None:
    with pytest.raises(pulumi.RunError, match=f"cloudgpu:{key}"):
        run_alibaba(**{key: value})
