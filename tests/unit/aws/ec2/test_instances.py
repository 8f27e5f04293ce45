"""Terminate instances and wait until AWS confirms the termination."""

from datetime import UTC, datetime
from typing import Any

import pytest

from cloudgpu.aws.ec2.instances import terminate
from cloudgpu.errors import CloudError

TO_END = ["pending", "running", "stopping", "stopped"]


def shown(*states: str) -> dict[str, Any]:
    rows = [
        {
            "InstanceId": f"i-{number}",
            "InstanceType": "p3dn.24xlarge",
            "LaunchTime": datetime(2026, 11, 21, tzinfo=UTC),
            "Placement": {"AvailabilityZone": "us-east-1c"},
            "State": {"Name": state},
        }
        for number, state in enumerate(states)
    ]
    return {"Reservations": [{"Instances": rows}]}


def asked(ids: list[str], states: list[str]) -> dict[str, Any]:
    return {
        "Filters": [{"Name": "instance-id", "Values": ids}, {"Name": "instance-state-name", "Values": states}],
    }


def test_terminate_polls_only_unfinished_instances(scripted, clock) -> None:
    ec2, both = scripted.stub("ec2"), ["i-0", "i-1"]
    ec2.add_response("describe_instances", shown("running", "stopped"), asked(both, TO_END))
    ec2.add_response("terminate_instances", {}, {"InstanceIds": both})
    for answer in (shown("shutting-down", "shutting-down"), shown("shutting-down"), shown()):
        ec2.add_response("describe_instances", answer, asked(both, [*TO_END, "shutting-down"]))
    terminate(scripted, clock, both)
    ec2.assert_no_pending_responses()


def test_shutting_down_instance_is_awaited_without_second_terminate(scripted, clock) -> None:
    ec2 = scripted.stub("ec2")
    ec2.add_response("describe_instances", shown(), asked(["i-0"], TO_END))
    ec2.add_response("describe_instances", shown("shutting-down"), asked(["i-0"], [*TO_END, "shutting-down"]))
    ec2.add_response("describe_instances", shown("terminated"), asked(["i-0"], [*TO_END, "shutting-down"]))
    terminate(scripted, clock, ["i-0"])
    ec2.assert_no_pending_responses()


def test_instance_that_never_terminates_raises_error(scripted, clock) -> None:
    ec2 = scripted.stub("ec2")
    ec2.add_response("describe_instances", shown(), asked(["i-0"], TO_END))
    for _ in range(200):
        ec2.add_response("describe_instances", shown("shutting-down"), asked(["i-0"], [*TO_END, "shutting-down"]))
    with pytest.raises(CloudError, match="i-0 to terminate"):
        terminate(scripted, clock, ["i-0"], total_s=60, shutdown_s=60)
