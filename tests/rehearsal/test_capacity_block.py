"""A run in a Capacity Block: launched into the block by its ID, and never longer than the block lasts."""

from datetime import UTC, datetime, timedelta

import boto3
import pytest

pytestmark = pytest.mark.rehearsal


def test_capacity_block_run_cannot_outlast_the_block(workspace):
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


def test_plan_with_an_unknown_reservation_names_it_and_with_a_malformed_one_says_where_the_id_is(workspace):
    def refused(reservation: str, code: int) -> str:
        workspace.recipe(
            resources="{instance_type: p4d.24xlarge, nodes: 2, regions: [us-east-1], network: tcp, "
            f"market: reservation, reservation: {reservation}}}"
        )
        done = workspace.run("plan", "plain", code=code)
        return done.stderr + done.stdout

    assert "cr-0a1b2c3d4e5f60718" in refused("cr-0a1b2c3d4e5f60718", 7)
    malformed = refused("cr-0a1b2c3d", 8)
    assert "looking for cr-0a1b2c3d in us-east-1" in malformed
    assert "aws ec2 describe-capacity-reservations" in malformed
