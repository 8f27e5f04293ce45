"""Reserved capacity: used only by launches that name it, after its start, and up to its instance count."""

from datetime import UTC, datetime, timedelta

import pytest
from botocore.exceptions import ClientError

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal


def run(rig, kind: str, zone: str, reservation: str, *, market: str = "", count: int = 1) -> list[str]:
    more = {"InstanceMarketOptions": {"MarketType": market}} if market else {}
    target = {"CapacityReservationTarget": {"CapacityReservationId": reservation}}
    made = rig.ec2.run_instances(
        MinCount=count,
        MaxCount=count,
        ImageId=rig.ami(),
        InstanceType=kind,
        SubnetId=rig.subnet(zone),
        CapacityReservationSpecification=target,
        **more,
    )
    return [row["InstanceId"] for row in made["Instances"]]


def refused(work, *args, **kwargs) -> str:
    with pytest.raises(ClientError) as err:
        work(*args, **kwargs)
    return str(err.value.response["Error"]["Code"])


def shown(rig, reservation: str) -> dict:
    (row,) = rig.ec2.describe_capacity_reservations(CapacityReservationIds=[reservation])["CapacityReservations"]
    return row


def block(rig, starts: datetime, hours: int = 24) -> dict:
    offers = rig.ec2.describe_capacity_block_offerings(
        InstanceType="p4d.24xlarge", InstanceCount=2, StartDateRange=starts, CapacityDurationHours=hours
    )["CapacityBlockOfferings"]
    bought = rig.ec2.purchase_capacity_block(
        CapacityBlockOfferingId=offers[0]["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
    )
    return bought["CapacityReservation"]


def test_reservation_holds_capacity_for_launches_that_target_its_id(rig):
    client.put_capacity(rig.cloud, {"us-east-1c/p3dn.24xlarge/on-demand": 0})  # nothing left for anybody else
    made = rig.ec2.create_capacity_reservation(
        InstanceType="p3dn.24xlarge", InstancePlatform="Linux/UNIX", AvailabilityZone="us-east-1c", InstanceCount=2
    )["CapacityReservation"]
    mine = made["CapacityReservationId"]
    assert (made["State"], made["AvailableInstanceCount"], made["ReservationType"]) == ("active", 2, "default")
    first = run(rig, "p3dn.24xlarge", "us-east-1c", mine)
    assert shown(rig, mine)["AvailableInstanceCount"] == 1
    assert refused(run, rig, "p3dn.24xlarge", "us-east-1c", mine, count=2) == "ReservationCapacityExceeded"
    assert refused(run, rig, "g5.xlarge", "us-east-1c", mine) == "InvalidParameterValue"
    assert refused(run, rig, "p3dn.24xlarge", "us-east-1d", mine) == "InvalidParameterValue"
    unknown = refused(run, rig, "p3dn.24xlarge", "us-east-1c", "cr-00000000000000000")
    assert unknown == "InvalidCapacityReservationId.NotFound"
    rig.ec2.terminate_instances(InstanceIds=first)
    rig.until(lambda: shown(rig, mine)["AvailableInstanceCount"] == 2)
    rig.ec2.cancel_capacity_reservation(CapacityReservationId=mine)
    assert shown(rig, mine)["State"] == "cancelled"
    assert refused(run, rig, "p3dn.24xlarge", "us-east-1c", mine) == "ReservationCapacityExceeded"


def test_capacity_block_cannot_be_used_before_its_start(rig):
    soon = datetime.now(UTC) + timedelta(hours=2)
    made = block(rig, soon)
    mine, zone = made["CapacityReservationId"], made["AvailabilityZone"]
    assert (made["State"], made["ReservationType"]) == ("scheduled", "capacity-block")
    early = refused(run, rig, "p4d.24xlarge", zone, mine, market="capacity-block")
    assert early == "InsufficientInstanceCapacity"
    assert refused(rig.ec2.cancel_capacity_reservation, CapacityReservationId=mine) == "UnsupportedOperation"


def test_capacity_block_requires_its_market_and_closes_before_its_end(rig):
    made = block(rig, datetime.now(UTC) - timedelta(hours=1))
    mine, zone = made["CapacityReservationId"], made["AvailabilityZone"]
    assert refused(run, rig, "p4d.24xlarge", zone, mine) == "InvalidParameterCombination"
    assert len(run(rig, "p4d.24xlarge", zone, mine, market="capacity-block", count=2)) == 2
    late = block(rig, datetime.now(UTC) - timedelta(hours=23, minutes=45))
    request = (rig, "p4d.24xlarge", late["AvailabilityZone"], late["CapacityReservationId"])
    assert refused(run, *request, market="capacity-block") == "InsufficientInstanceCapacity"


def test_types_without_capacity_blocks_get_no_offerings(rig):
    request = {"InstanceType": "p3dn.24xlarge", "InstanceCount": 1, "CapacityDurationHours": 24}
    assert refused(rig.ec2.describe_capacity_block_offerings, **request) == "Unsupported"


def test_reservations_are_described_by_id_and_not_by_a_filter_for_the_id(rig):
    describe = rig.ec2.describe_capacity_reservations
    by_id = [{"Name": "capacity-reservation-id", "Values": ["cr-00000000000000000"]}]
    assert refused(describe, Filters=by_id) == "InvalidParameterValue"
    unknown, malformed = "InvalidCapacityReservationId.NotFound", "InvalidCapacityReservationId.Malformed"
    assert refused(describe, CapacityReservationIds=["cr-00000000000000000"]) == unknown
    assert refused(describe, CapacityReservationIds=["cr-12345678"]) == malformed
