"""Find resources by tag and delete them; a failure is reported and does not stop the other deletions."""

import pytest

from cloudgpu.aws.ec2 import tag_search
from cloudgpu.aws.ec2.instances import terminate
from cloudgpu.aws.ec2.tag_search import release
from cloudgpu.cloud import TaggedResource
from cloudgpu.errors import AuthError, CloudError, TeardownError

TAGS = {"cloudgpu:cluster": "demo"}


def found(kind, name: str, state: str = "") -> TaggedResource:
    return TaggedResource(kind, name, "us-east-1", "n", TAGS, state)


def test_release_reports_failed_resource_and_deletes_others(scripted, clock) -> None:
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


def test_instances_without_confirmed_termination_are_reported_as_left(scripted, clock) -> None:
    ec2 = scripted.stub("ec2")
    for _ in range(200):
        ec2.add_client_error("describe_instances", "UnauthorizedOperation", http_status_code=403)
    with pytest.raises(TeardownError) as caught:
        release(scripted, [found("instance", "i-1", "running"), found("instance", "i-2", "running")], clock)
    assert [line.split(":")[0] for line in caught.value.left] == [
        "instance i-1 (running) in us-east-1",
        "instance i-2 (running) in us-east-1",
    ]


def test_deleted_volumes_are_confirmed_with_single_call(scripted, clock) -> None:
    scripted.stub("ec2").add_response(
        "describe_volumes", {"Volumes": []}, {"Filters": [{"Name": "volume-id", "Values": ["vol-1", "vol-2"]}]}
    )
    release(scripted, [found("volume", "vol-1"), found("volume", "vol-2")], clock)
    scripted.done()


def test_remaining_volume_is_deleted_and_confirmed(scripted, clock) -> None:
    ec2 = scripted.stub("ec2")
    volume = {"VolumeId": "vol-1", "State": "available"}
    ec2.add_response("describe_volumes", {"Volumes": [volume]})
    ec2.add_client_error("delete_volume", "VolumeInUse", http_status_code=400)
    ec2.add_response("delete_volume", {}, {"VolumeId": "vol-1"})
    ec2.add_response("describe_volumes", {"Volumes": [volume]})
    ec2.add_response("describe_volumes", {"Volumes": [{**volume, "State": "deleting"}]})
    release(scripted, [found("volume", "vol-1")], clock)
    scripted.done()


def test_release_of_nothing_makes_no_calls(scripted, clock) -> None:
    release(scripted, [], clock)
    assert scripted.stubs == {}


@pytest.fixture
def listed(session, monkeypatch):
    """Limit the search to resource types that moto can list."""
    monkeypatch.setattr(tag_search, "LISTINGS", [one for one in tag_search.LISTINGS if one.kind != "placement-group"])
    return session


def denied(*_):
    raise AuthError("not authorized to perform scheduler:ListScheduleGroups")


def test_denied_listing_does_not_hide_other_results(listed, monkeypatch) -> None:
    listed.client("ec2").create_security_group(
        GroupName="cloudgpu-demo",
        Description="d",
        TagSpecifications=[
            {"ResourceType": "security-group", "Tags": [{"Key": k, "Value": v} for k, v in TAGS.items()]}
        ],
    )
    monkeypatch.setattr(tag_search, "_schedule_groups", denied)
    result = tag_search.search_region(listed, "demo")
    assert [one.kind for one in result.found] == ["security-group"]
    assert {region: err.message for region, err in result.failures.items()} == {
        "us-east-1": "not authorized to perform scheduler:ListScheduleGroups"
    }
    with pytest.raises(AuthError):
        result.complete()
    with pytest.raises(AuthError):
        tag_search.find_tagged_resources(listed, "demo")


def test_denied_iam_listing_is_reported_as_global_failure(listed, monkeypatch) -> None:
    monkeypatch.setattr(tag_search, "_roles", denied)
    assert list(tag_search.search_iam(listed, "demo").failures) == ["global"]
    assert tag_search.search_region(listed, "demo").failures == {}


def test_terminated_instances_are_listed_separately(listed) -> None:
    ec2 = listed.client("ec2")
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "cloudgpu:cluster", "Value": "demo"}]}]
    made = ec2.run_instances(ImageId="ami-12c6146b", MinCount=1, MaxCount=1, TagSpecifications=tags)
    instance_id = made["Instances"][0]["InstanceId"]
    ec2.terminate_instances(InstanceIds=[instance_id])
    result = tag_search.search_region(listed, "demo")
    assert [one.id for one in result.terminated] == [instance_id]
    assert [one for one in result.found if one.kind == "instance"] == []


def test_unreachable_region_stops_remaining_queries() -> None:
    asked = []

    def silent():
        asked.append(1)
        raise CloudError("no answer", code="Unreachable")

    found, errors = tag_search._answered([silent] * 100)
    assert (found, len(errors)) == ([], 100)
    assert len(asked) <= tag_search._AT_ONCE


def test_instances_are_terminated_without_describe_permission(scripted, clock) -> None:
    ec2 = scripted.stub("ec2")
    ec2.add_client_error("describe_instances", "UnauthorizedOperation", http_status_code=403)
    ec2.add_response("terminate_instances", {"TerminatingInstances": []}, {"InstanceIds": ["i-1", "i-2"]})
    ec2.add_client_error("describe_instances", "UnauthorizedOperation", http_status_code=403)
    with pytest.raises(AuthError):
        terminate(scripted, clock, ["i-2", "i-1"])
    scripted.done()
