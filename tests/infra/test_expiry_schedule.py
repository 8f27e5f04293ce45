"""The expiry schedule terminates the nodes shortly after their expiry and can terminate nothing else."""

import json

import pulumi
import pytest
from boto3 import Session
from program_mock import Recorder, run_program

from cloudgpu.backends.aws.clusters.tag_search import region_of
from cloudgpu.cloud import GLOBAL, TaggedResource
from gpu_cluster.expiry_schedule import role_name


@pytest.fixture(scope="module")
def pair() -> Recorder:
    return run_program()


def expiry_role(recorder: Recorder) -> dict:
    (role,) = [one.inputs for one in recorder.resources if one.typ.endswith(":Role") and one.name.endswith("-belt")]
    return role


def schedule_of(recorder: Recorder, name: str) -> dict:
    (found,) = [one for one in recorder.of("Schedule") if one["name"] == name]
    return found


def test_schedule_terminates_every_node_five_minutes_after_expiry(pair: Recorder) -> None:
    schedule = schedule_of(pair, "end-the-nodes")
    assert schedule["scheduleExpression"] == "at(2026-11-21T05:05:00)"
    assert schedule["scheduleExpressionTimezone"] == "UTC"
    assert schedule["flexibleTimeWindow"] == {"mode": "OFF"}
    assert schedule["actionAfterCompletion"] == "DELETE"
    assert schedule["target"]["arn"] == "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances"
    assert json.loads(schedule["target"]["input"]) == {"InstanceIds": ["i-a", "i-b", "i-c"]}


def test_second_schedule_deletes_the_fleet_ten_minutes_after_expiry(pair: Recorder) -> None:
    schedule = schedule_of(pair, "end-the-fleet")
    assert schedule["scheduleExpression"] == "at(2026-11-21T05:10:00)"
    assert schedule["target"]["arn"] == "arn:aws:scheduler:::aws-sdk:ec2:deleteFleets"
    assert json.loads(schedule["target"]["input"]) == {"FleetIds": ["fleet-id"], "TerminateInstances": True}


@pytest.mark.parametrize("nodes", ["1", "200"])
def test_number_of_schedules_is_two_for_any_node_count(nodes: str) -> None:
    assert len(run_program(nodes=nodes).of("Schedule")) == 2


def test_schedules_are_in_a_tagged_schedule_group(pair: Recorder) -> None:
    group = pair.one("ScheduleGroup")
    assert group["name"] == "cloudgpu-demo"
    assert group["tags"]["cloudgpu:token"] == "tok-1"
    assert {one["groupName"] for one in pair.of("Schedule")} == {"cloudgpu-demo"}


def test_schedule_group_omits_tags_without_a_value() -> None:
    group = run_program(team="", run="").one("ScheduleGroup")
    assert sorted(group["tags"]) == [
        "Name",
        *(f"cloudgpu:{one}" for one in ("cluster", "expires-at", "owner", "token")),
    ]


def test_schedule_role_can_terminate_only_resources_of_its_cluster(pair: Recorder) -> None:
    nodes, fleet = json.loads(pair.named("RolePolicy", "demo-belt")["policy"])["Statement"]
    assert nodes == {
        "Effect": "Allow",
        "Action": "ec2:TerminateInstances",
        "Resource": "arn:aws:ec2:us-east-1:*:instance/*",
        "Condition": {"StringEquals": {"aws:ResourceTag/cloudgpu:token": "tok-1"}},
    }
    assert fleet == {**nodes, "Action": "ec2:DeleteFleets", "Resource": "arn:aws:ec2:us-east-1:*:fleet/*"}


def test_schedule_role_can_be_assumed_only_for_its_group() -> None:
    recorder = run_program()
    (statement,) = json.loads(expiry_role(recorder)["assumeRolePolicy"])["Statement"]
    assert statement["Principal"] == {"Service": "scheduler.amazonaws.com"}
    assert statement["Action"] == "sts:AssumeRole"
    assert statement["Condition"] == {"StringEquals": {"aws:SourceArn": "arn:of:scheduleGroup"}}


def test_expiry_schedule_is_disabled_only_by_its_setting() -> None:
    recorder = run_program(expirySchedule="false")
    assert not [one.typ for one in recorder.resources if "scheduler" in one.typ or one.name.endswith("-belt")]
    with pytest.raises(pulumi.RunError, match="cloudgpu:expirySchedule is 'no', expected true or false"):
        run_program(expirySchedule="no")


def test_arns_use_the_partition_of_the_region() -> None:
    recorder = run_program(zone="us-gov-west-1a")
    assert all(one["target"]["arn"].startswith("arn:aws-us-gov:scheduler:::") for one in recorder.of("Schedule"))
    assert "arn:aws-us-gov:ec2:us-gov-west-1:" in recorder.named("RolePolicy", "demo-belt")["policy"]


@pytest.mark.parametrize("region", ["us-east-1", "ap-northeast-1", "ap-southeast-2", "us-gov-west-1", "eu-central-1"])
def test_longest_cluster_name_fits_into_a_role_name(region: str) -> None:
    name = role_name(f"cloudgpu-{'c' * 39}", region)
    assert len(name) <= 64
    assert name.startswith(f"cloudgpu-{'c' * 39}-")


@pytest.mark.parametrize("partition", ["aws", "aws-cn", "aws-us-gov"])
def test_role_name_leads_a_deletion_to_the_region(partition: str) -> None:
    for region in Session().get_available_regions("ec2", partition):
        name = role_name("cloudgpu-lab", region)
        assert region_of(TaggedResource("role", name, GLOBAL, name, {}), "lab") == region
