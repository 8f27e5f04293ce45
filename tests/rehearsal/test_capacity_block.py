"""A run in a Capacity Block: launched into it by name, never longer than it lasts."""

from datetime import UTC, datetime, timedelta

import boto3
import pytest

pytestmark = pytest.mark.rehearsal


def test_a_run_in_a_block(workspace):
    cloud = workspace.cloud
    ec2 = boto3.client(
        "ec2",
        region_name="us-east-1",
        endpoint_url=cloud.url,
        aws_access_key_id=cloud.access_key_id,
        aws_secret_access_key=cloud.secret_access_key,
    )
    offer = ec2.describe_capacity_block_offerings(
        InstanceType="p4d.24xlarge",
        InstanceCount=2,
        StartDateRange=datetime.now(UTC) - timedelta(hours=22, minutes=50),
        CapacityDurationHours=24,
    )["CapacityBlockOfferings"][0]
    mine = ec2.purchase_capacity_block(
        CapacityBlockOfferingId=offer["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
    )["CapacityReservation"]["CapacityReservationId"]
    workspace.recipe(
        resources="{instance_type: p4d.24xlarge, nodes: 2, regions: [us-east-1], network: tcp, "
        f"market: capacity-block, reservation: {mine}}}"
    )
    plan = workspace.json("plan", "plain")
    assert [one["zone"] for one in plan["candidates"]] == [offer["AvailabilityZone"]]
    # The block lasts 70 minutes more: the run's hour becomes what is left before AWS takes the nodes.
    assert 30 * 60 < plan["expiry_s"] <= 40 * 60
    outcome = workspace.json("train", "plain", "--yes", "--keep")
    assert outcome["state"] == "succeeded"
    held = ec2.describe_capacity_reservations(CapacityReservationIds=[mine])["CapacityReservations"][0]
    assert held["AvailableInstanceCount"] == 0
    assert workspace.left().get("placement_groups") is None
    cluster = outcome["cluster"]
    refused = workspace.run("extend", cluster, "--by", "3h", code=2)
    assert f"Capacity Block {mine} ends at {held['EndDate']:%Y-%m-%d %H:%M} UTC" in refused.stderr
    assert "they cannot run until" in refused.stderr
    workspace.run("down", cluster)
    assert workspace.left() == {}
