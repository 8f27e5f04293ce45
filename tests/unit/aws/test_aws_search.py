"""Ending what was found: what fails is told and does not save the rest."""

import pytest

from cloudgpu.aws.found import Found
from cloudgpu.aws.search import release
from cloudgpu.errors import AuthError, TeardownError

TAGS = {"cloudgpu:cluster": "demo"}


def found(kind, name: str, state: str = "") -> Found:
    return Found(kind, name, "us-east-1", "n", TAGS, state)


def test_what_cannot_be_ended_is_named_and_the_rest_is_ended(scripted, clock) -> None:
    ec2 = scripted.stub("ec2")
    # The order is the one in which things can be ended, not the one in which they are given.
    ec2.add_client_error("delete_launch_template", "UnauthorizedOperation", http_status_code=403)
    ec2.add_response("delete_security_group", {}, {"GroupId": "sg-1"})
    ec2.add_response("delete_key_pair", {}, {"KeyName": "key"})
    things = [found("key-pair", "key"), found("security-group", "sg-1"), found("launch-template", "lt-1")]
    with pytest.raises(TeardownError) as caught:
        release(scripted, things, clock)
    (left,) = caught.value.left
    assert left.startswith("launch-template lt-1 in us-east-1: ")
    assert isinstance(caught.value.__cause__, AuthError)
    scripted.done()


def test_instances_whose_end_is_not_confirmed_are_left(scripted, clock) -> None:
    ec2 = scripted.stub("ec2")
    for _ in range(200):
        ec2.add_client_error("describe_instances", "UnauthorizedOperation", http_status_code=403)
    with pytest.raises(TeardownError) as caught:
        release(scripted, [found("instance", "i-1", "running"), found("instance", "i-2", "running")], clock)
    assert [line.split(":")[0] for line in caught.value.left] == [
        "instance i-1 (running) in us-east-1",
        "instance i-2 (running) in us-east-1",
    ]


def test_disks_that_went_with_their_instances_cost_one_question(scripted, clock) -> None:
    scripted.stub("ec2").add_response(
        "describe_volumes", {"Volumes": []}, {"Filters": [{"Name": "volume-id", "Values": ["vol-1", "vol-2"]}]}
    )
    release(scripted, [found("volume", "vol-1"), found("volume", "vol-2")], clock)
    scripted.done()


def test_a_disk_that_stays_is_deleted_and_its_end_confirmed(scripted, clock) -> None:
    ec2 = scripted.stub("ec2")
    volume = {"VolumeId": "vol-1", "State": "available"}
    ec2.add_response("describe_volumes", {"Volumes": [volume]})
    ec2.add_client_error("delete_volume", "VolumeInUse", http_status_code=400)
    ec2.add_response("delete_volume", {}, {"VolumeId": "vol-1"})
    ec2.add_response("describe_volumes", {"Volumes": [volume]})
    ec2.add_response("describe_volumes", {"Volumes": [{**volume, "State": "deleting"}]})
    release(scripted, [found("volume", "vol-1")], clock)
    scripted.done()


def test_nothing_found_is_nothing_to_do(scripted, clock) -> None:
    release(scripted, [], clock)
    assert scripted.stubs == {}
