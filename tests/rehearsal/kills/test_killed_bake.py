"""SIGKILL of `image bake` around the calls that create the image, and of `image delete` around all its calls.

Before CreateImage a bake is an `up`, and after it a `down`; other tests kill both at every point.
"""

import boto3
import pytest

from cloudgpu.app.images import bake_cluster_name
from cloudgpu.state.record_store import RecordStore

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(3600)]

BAKE = ("image", "bake", "plain", "--name", "base", "--yes")
DELETE = ("image", "delete", "base", "--yes")


def count_images(sandbox):
    """Count the images and snapshots that cloudgpu has tagged."""
    cloud = sandbox.workspace.cloud
    key = {"aws_access_key_id": cloud.access_key_id, "aws_secret_access_key": cloud.secret_access_key}
    ec2 = boto3.client("ec2", "us-east-1", endpoint_url=cloud.url, **key)
    tagged = [{"Name": "tag-key", "Values": ["cloudgpu:image"]}]
    images = ec2.describe_images(Owners=["self"], Filters=tagged)["Images"]
    return len(images), len(ec2.describe_snapshots(OwnerIds=["self"], Filters=tagged)["Snapshots"])


def kill_bake_then_delete(sandbox, point):
    sandbox.kill_at(point, *BAKE)
    # If the bake was killed before it recorded anything, there is nothing to delete, and `image delete` reports that.
    cluster_names = {cluster.name for cluster in RecordStore(sandbox.home).clusters()}
    recorded = bake_cluster_name("base") in cluster_names or count_images(sandbox) != (0, 0)
    sandbox.run(*DELETE, code=0 if recorded else 2)
    assert count_images(sandbox) == (0, 0), point
    sandbox.check_empty(point, recorded=recorded)


@pytest.fixture(scope="module")
def bake_points(real_node_pool):
    """Kill points of an uninterrupted `image bake`."""
    points = real_node_pool.sandboxes[0].kill_points(*BAKE)
    assert count_images(real_node_pool.sandboxes[0]) == (1, 1)
    real_node_pool.sandboxes[0].run(*DELETE)
    real_node_pool.sandboxes[0].check_empty("uninterrupted")
    return points


@pytest.mark.parametrize("point", ["CreateImage#1 effect"])
def test_image_delete_after_bake_killed_at_create_image_leaves_nothing(real_node_pool, bake_points, point):
    assert point in bake_points.all
    kill_bake_then_delete(real_node_pool.sandboxes[0], point)


@pytest.mark.full
def test_image_delete_after_bake_killed_around_any_call_leaves_nothing(real_node_pool, bake_points):
    real_node_pool.run_cases(bake_points.calls, kill_bake_then_delete)


def kill_delete_then_repeat(sandbox, point):
    sandbox.run(*BAKE)
    sandbox.kill_at(point, *DELETE)
    # If the killed `image delete` had already deleted everything, there is nothing left to delete.
    sandbox.run(*DELETE, code=0 if count_images(sandbox) != (0, 0) else 2)
    assert count_images(sandbox) == (0, 0), point
    sandbox.check_empty(point)


@pytest.mark.parametrize("point", ["DeregisterImage#1 effect", "DeleteSnapshot#1 effect"])
def test_image_delete_resumes_after_a_kill_at_image_or_snapshot(real_node_pool, bake_points, point):
    kill_delete_then_repeat(real_node_pool.sandboxes[0], point)


@pytest.mark.full
def test_image_delete_resumes_after_a_kill_around_any_change(real_node_pool, bake_points):
    sandbox = real_node_pool.sandboxes[0]
    sandbox.run(*BAKE)
    real_node_pool.run_cases(sandbox.kill_points(*DELETE).around_changes, kill_delete_then_repeat)
