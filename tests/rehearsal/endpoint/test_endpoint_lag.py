"""Lagging tag searches: a new resource exists, but a search by its tags does not find it yet."""

import pytest

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal

TAG = {"Key": "cloudgpu:cluster", "Value": "c"}
BY_TAG = [{"Name": "tag:cloudgpu:cluster", "Values": ["c"]}]


@pytest.fixture
def group_id(rig):
    tags = [{"ResourceType": "security-group", "Tags": [TAG]}]
    made = rig.ec2.create_security_group(GroupName="gang", Description="gang", TagSpecifications=tags)
    return made["GroupId"]


def lag(rig, seconds):
    client.put_faults(rig.cloud, [{"do": "lag", "action": "Describe*", "seconds": seconds}])


def found(rig, **question):
    return [one["GroupId"] for one in rig.ec2.describe_security_groups(**question)["SecurityGroups"]]


def test_new_resource_is_found_by_id_but_not_by_tag(rig, group_id):
    lag(rig, 3600)
    assert found(rig, Filters=BY_TAG) == []
    assert found(rig, Filters=[{"Name": "tag-key", "Values": ["cloudgpu:cluster"]}]) == []
    shown = rig.ec2.describe_security_groups(GroupIds=[group_id])["SecurityGroups"][0]
    assert shown["Tags"] == [TAG]


def test_tag_search_finds_resource_after_the_lag(rig, group_id):
    lag(rig, 0.001)
    rig.until(lambda: found(rig, Filters=BY_TAG) == [group_id])
    lag(rig, 3600)
    assert found(rig, Filters=BY_TAG) == []
    client.put_faults(rig.cloud, [])
    assert found(rig, Filters=BY_TAG) == [group_id]


def test_other_faults_apply_together_with_tag_lag(rig, group_id):
    rules = [
        {"do": "lag", "action": "Describe*", "seconds": 3600},
        {"do": "error", "action": "DescribeVpcs", "code": "RequestLimitExceeded", "http": 503, "times": 1},
    ]
    client.put_faults(rig.cloud, rules)
    with pytest.raises(Exception, match="RequestLimitExceeded"):
        rig.ec2.describe_vpcs()
    assert found(rig, Filters=BY_TAG) == []
