"""Nodes without an automatic public address: reached by Elastic IPs, or through the first node behind NAT."""

import json

import boto3
import pytest

pytestmark = pytest.mark.rehearsal

P4D = "{instance_type: p4d.24xlarge, nodes: 2, regions: [us-east-1]}"


def ec2(workspace):
    cloud = workspace.cloud
    return boto3.client(
        "ec2",
        region_name="us-east-1",
        endpoint_url=cloud.url,
        aws_access_key_id=cloud.access_key_id,
        aws_secret_access_key=cloud.secret_access_key,
    )


def inventory(workspace, cluster: str) -> list[dict]:
    return json.loads(workspace.home.cluster(cluster).inventory.read_text())["nodes"]


def test_multi_interface_nodes_get_an_elastic_ip(workspace):
    workspace.recipe(resources=P4D)
    outcome = workspace.json("train", "plain", "--yes", "--keep")
    assert outcome["state"] == "succeeded"
    addresses = {row["InstanceId"]: row["PublicIp"] for row in ec2(workspace).describe_addresses()["Addresses"]}
    rows = [row for group in ec2(workspace).describe_instances()["Reservations"] for row in group["Instances"]]
    assert {row["InstanceId"]: row["PublicIpAddress"] for row in rows} == addresses
    for row in rows:
        kinds = sorted(
            (one["Attachment"]["NetworkCardIndex"], one["InterfaceType"]) for one in row["NetworkInterfaces"]
        )
        assert kinds == [(0, "efa-only"), (0, "interface"), (1, "efa-only"), (2, "efa-only"), (3, "efa-only")]
    workspace.run("down", outcome["cluster"])
    assert workspace.left() == {}


def test_nodes_behind_nat_are_reached_through_the_first_node(workspace):
    workspace.recipe(resources=P4D)
    nat = {"CLOUDGPU_PUBLIC_ADDRESS": "nat"}
    outcome = workspace.json("train", "plain", "--yes", "--keep", env=nat)
    assert outcome["state"] == "succeeded"
    cluster = outcome["cluster"]
    assert [node["jump"] for node in inventory(workspace, cluster)] == [None, 0]
    assert workspace.run("ssh", cluster, "--node", "1", "--", "echo", "inside", env=nat).stdout == "inside\n"
    assert workspace.run("exec", cluster, "--", "echo", "both", env=nat).stdout == "nodes 0-1:\n  both\n"
    left = workspace.left()
    assert {kind: len(left[kind]) for kind in ("addresses", "nat_gateways", "endpoints", "vpcs")} == {
        "addresses": 2,
        "nat_gateways": 1,
        "endpoints": 1,
        "vpcs": 1,
    }
    with_address = [
        "PublicIpAddress" in row
        for group in ec2(workspace).describe_instances()["Reservations"]
        for row in group["Instances"]
    ]
    assert sorted(with_address) == [False, True]
    # A second `up` finds everything as it should be.
    calls_before = len(left["addresses"])
    workspace.run("up", "plain", "--name", cluster, "--yes", env=nat)
    assert len(workspace.left()["addresses"]) == calls_before
    workspace.run("down", cluster, env=nat)
    assert workspace.left() == {}
