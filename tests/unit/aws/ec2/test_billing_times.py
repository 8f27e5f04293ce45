"""Read from AWS when billed resources ended; an unknown end time stays open."""

from datetime import UTC, datetime

import pytest

from cloudgpu.aws.ec2 import billing_times
from cloudgpu.aws.ec2.billing_times import transition_time

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("reason", "at"),
    [
        ("User initiated (2026-11-21 12:00:00 GMT)", NOON),
        ("User initiated (2026-11-21 12:00:00 UTC)", NOON),
        ("Client.UserInitiatedShutdown: User initiated shutdown (2026-11-21 12:00:00 GMT)", NOON),
        ("User initiated", None),
        ("Server.SpotInstanceTermination", None),
        ("User initiated (2026-11-21 12:00:00 PST)", None),
        ("User initiated (2026-13-41 12:00:00 GMT)", None),
        ("User initiated (2026-11-21 25:00:00 GMT)", None),
        ("", None),
    ],
)
def test_transition_time_is_read_only_in_utc(reason, at):
    assert transition_time(reason) == at


def instance(name, state, reason, instance_id):
    return {
        "InstanceId": instance_id,
        "State": {"Name": state},
        "StateTransitionReason": reason,
        "LaunchTime": NOON,
        "Tags": [{"Key": "Name", "Value": name}],
    }


def test_only_instances_that_left_running_state_have_end_time(scripted):
    there = [
        instance("a", "running", "User initiated (2026-11-21 11:00:00 GMT)", "i-1"),
        instance("b", "shutting-down", "User initiated (2026-11-21 13:00:00 GMT)", "i-2"),
        instance("c", "terminated", "User initiated", "i-3"),
    ]
    stub = scripted.stub("ec2")
    stub.add_response("describe_instances", {"Reservations": [{"Instances": there}]})
    found = billing_times.instance_lifetimes(scripted, ["i-1", "i-2", "i-3", "i-4"])
    assert {one: (life.alive, life.ended_at) for one, life in found.items()} == {
        "i-1": (True, None),
        "i-2": (False, NOON.replace(hour=13)),
        "i-3": (False, None),
    }
    assert {life.started_at for life in found.values()} == {NOON}


def test_nat_gateways_have_end_time_and_addresses_have_none(scripted):
    stub = scripted.stub("ec2")
    gateways = [
        {"NatGatewayId": "nat-1", "State": "deleted", "CreateTime": NOON, "DeleteTime": NOON.replace(hour=14)},
        {"NatGatewayId": "nat-2", "State": "deleting", "CreateTime": NOON},
    ]
    stub.add_response("describe_nat_gateways", {"NatGateways": gateways})
    stub.add_response("describe_addresses", {"Addresses": [{"AllocationId": "eipalloc-1"}]})
    found = {
        one.id: (one.kind, one.alive, one.ended_at) for one in billing_times.network_resource_lifetimes(scripted, "tok")
    }
    assert found == {
        "nat-1": ("nat-gateway", False, NOON.replace(hour=14)),
        "nat-2": ("nat-gateway", True, None),
        "eipalloc-1": ("elastic-ip", True, None),
    }


@pytest.mark.parametrize(
    ("code", "state", "never_ran"),
    [
        ("Client.InternalError", "terminated", True),
        ("Server.InternalError", "shutting-down", True),
        ("Client.VolumeLimitExceeded", "terminated", True),
        ("Client.InvalidSnapshot.NotFound", "terminated", True),
        ("Server.InsufficientInstanceCapacity", "terminated", True),
        ("Client.UserInitiatedShutdown", "terminated", False),
        ("Client.InstanceInitiatedShutdown", "terminated", False),
        ("Server.SpotInstanceTermination", "terminated", False),
        ("Server.InternalError", "running", False),
        ("", "terminated", False),
    ],
)
def test_instance_that_failed_while_it_was_launched_never_ran(scripted, code, state, never_ran):
    row = {**instance("a", state, "", "i-1"), "StateReason": {"Code": code, "Message": code}}
    scripted.stub("ec2").add_response("describe_instances", {"Reservations": [{"Instances": [row]}]})
    assert billing_times.instance_lifetimes(scripted, ["i-1"])["i-1"].never_ran is never_ran
