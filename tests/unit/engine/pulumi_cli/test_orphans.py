"""Delete nodes of the cluster, by name and token, that belong to no recorded fleet."""

import pytest

from cloudgpu.aws.ec2 import tag_search
from cloudgpu.cloud import TaggedResource
from cloudgpu.engine.pulumi_cli.engine import delete_unrecorded_nodes

TAGS = {"cloudgpu:cluster": "demo", "cloudgpu:token": "t1"}


@pytest.fixture
def cloud(monkeypatch):
    class Cloud:
        found = (
            TaggedResource("instance", "i-1", "r", "", {"aws:ec2:fleet-id": "fleet-1"}),
            TaggedResource("instance", "i-2", "r", "", {"aws:ec2:fleet-id": "fleet-2"}),
            TaggedResource("fleet", "fleet-1", "r", "", {}),
            TaggedResource("fleet", "fleet-2", "r", "", {}),
            TaggedResource("security-group", "sg-1", "r", "", {}),
        )

        def __init__(self):
            self.asked = []
            self.released = []

    made = Cloud()
    monkeypatch.setattr(
        tag_search, "find_tagged_resources", lambda clients, *about: made.asked.append(about) or made.found
    )
    monkeypatch.setattr(tag_search, "release", lambda clients, found, clock: made.released.extend(found))
    return made


def test_only_nodes_of_unrecorded_fleets_are_deleted(cloud, workspace):
    assert delete_unrecorded_nodes(None, TAGS, {"fleet-1"}, workspace.clock) == ("i-2", "fleet-2")
    assert [one.id for one in cloud.released] == ["i-2", "fleet-2"]
    assert cloud.asked == [("demo", "t1")]


def test_tags_without_cluster_and_token_delete_nothing(cloud, workspace):
    for tags in ({}, {"cloudgpu:cluster": "demo"}, {"cloudgpu:token": "t1"}):
        assert delete_unrecorded_nodes(None, tags, (), workspace.clock) == ()
    assert (cloud.asked, cloud.released) == ([], [])
