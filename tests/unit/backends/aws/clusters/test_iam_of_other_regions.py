"""`down` deletes a cluster's IAM resources only with its nodes, also if it did not know in which region they are."""

import pytest

from cloudgpu.backends.aws.clusters.tag_search import region_of
from cloudgpu.errors import AuthError, CloudError, TeardownError
from tests.tagged_resource import Resource

MINE = {"cloudgpu:cluster": "demo", "cloudgpu:owner": "ann", "cloudgpu:token": "t-other"}
PROFILE = Resource("instance-profile", "cloudgpu-demo-eu-west-1", "global", MINE)
SCHEDULE_ROLE = Resource("role", "cloudgpu-demo-euw1-belt", "global", MINE)
UNNAMED = Resource("role", "cloudgpu-demo", "global", MINE)
NODE = Resource("instance", "i-far", "eu-west-1", MINE)


def deny(workspace, *regions):
    search = workspace.cloud.search

    def denied_search(cluster, wanted):
        if set(wanted) & set(regions):
            raise AuthError("not authorized")
        return search(cluster, wanted)

    workspace.cloud.search = denied_search


@pytest.mark.parametrize("in_iam", [PROFILE, SCHEDULE_ROLE, UNNAMED], ids=lambda resource: resource.id)
def test_down_without_a_record_finds_the_nodes_through_iam(workspace, in_iam):
    workspace.cloud.orphans = [NODE, in_iam]
    ended = workspace.teardown.down("demo", "us-east-1")
    assert ended.orphans == ("instance i-far", f"{in_iam.kind} {in_iam.id}")
    assert workspace.cloud.orphans == []


def test_iam_resources_stay_if_their_region_cannot_be_searched(workspace):
    workspace.cloud.orphans = [NODE, PROFILE, SCHEDULE_ROLE]
    deny(workspace, "eu-west-1")
    with pytest.raises(TeardownError) as caught:
        workspace.teardown.down("demo", "us-east-1")
    assert caught.value.message == "cluster demo is not confirmed deleted in eu-west-1"
    assert workspace.cloud.orphans == [NODE, PROFILE, SCHEDULE_ROLE]


def test_iam_resources_stay_if_the_regions_cannot_be_listed(workspace):
    def regions():
        raise CloudError("not authorized to list the regions")

    workspace.cloud.regions = regions
    workspace.cloud.orphans = [UNNAMED]
    with pytest.raises(TeardownError) as caught:
        workspace.teardown.down("demo", "us-east-1")
    assert caught.value.left == ("IAM: not authorized to list the regions",)
    assert workspace.cloud.orphans == [UNNAMED]


def test_iam_resources_that_appear_during_the_deletion_stay(workspace):
    """Another launch has begun in a region that was not searched."""
    leftover = Resource("instance", "i-near", "us-east-1", MINE)
    workspace.cloud.orphans = [leftover]
    release = workspace.cloud.release

    def release_while_launching(found, on_wait=None):
        release(found)
        workspace.cloud.orphans += [SCHEDULE_ROLE]

    workspace.cloud.release = release_while_launching
    with pytest.raises(TeardownError) as caught:
        workspace.teardown.down("demo", "us-east-1")
    assert caught.value.left == ("IAM: role cloudgpu-demo-euw1-belt in IAM",)
    assert workspace.cloud.orphans == [SCHEDULE_ROLE]


def test_down_of_a_recorded_cluster_leaves_another_with_its_name_in_another_region(workspace, make):
    record = workspace.provisioning.create(make.plan(make.candidate()), "demo").record
    own = MINE | {"cloudgpu:token": record.identity.token}
    beside = Resource("role", "cloudgpu-demo-us-east-1", "global", MINE)
    workspace.cloud.orphans = [NODE, SCHEDULE_ROLE, beside, Resource("role", "cloudgpu-demo-use1-belt", "global", own)]
    ended = workspace.teardown.down("demo", "us-east-1")
    assert ended.known
    assert workspace.cloud.orphans == [NODE, SCHEDULE_ROLE]
    assert "not deleted: role cloudgpu-demo-euw1-belt of another cluster demo, in eu-west-1" in workspace.notes


@pytest.mark.parametrize(
    ("name", "region"),
    [
        ("cloudgpu-demo-us-east-1", "us-east-1"),
        ("cloudgpu-demo-us-gov-west-1", "us-gov-west-1"),
        ("cloudgpu-demo-use1-belt", "us-east-1"),
        ("cloudgpu-demo-usgove1-belt", "us-gov-east-1"),
        ("cloudgpu-demo-apse12-belt", "ap-southeast-12"),
        ("cloudgpu-demo-apne1-belt", "ap-northeast-1"),
        ("cloudgpu-demo-cnn1-belt", "cn-north-1"),
        ("cloudgpu-demo-cnnw1-belt", "cn-northwest-1"),
        ("cloudgpu-demo-cac1-belt", "ca-central-1"),
        ("cloudgpu-demo-mes1-belt", "me-south-1"),
        ("cloudgpu-demo", ""),
        ("cloudgpu-demo-role", ""),
        ("cloudgpu-other-use1-belt", ""),
    ],
)
def test_region_in_the_name_of_an_iam_resource(name, region):
    assert region_of(Resource("role", name, "global"), "demo") == region
