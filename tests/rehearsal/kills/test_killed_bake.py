"""SIGKILL of `image bake` around the calls that create the image, and of `image delete` around all its calls.

Before CreateImage a bake is an `up`, and after it a `down`; other tests kill both at every point.
"""

import boto3
import pytest

from cloudgpu.app.images.bake import bake_cluster_name
from cloudgpu.state.record_store import RecordStore

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(3600)]

BAKE = ("image", "bake", "plain", "--name", "base", "--yes")
DELETE = ("image", "delete", "base", "--yes")


def own(sandbox):
    """Count the images and snapshots with our tag."""
    cloud = sandbox.workspace.cloud
    key = {"aws_access_key_id": cloud.access_key_id, "aws_secret_access_key": cloud.secret_access_key}
    ec2 = boto3.client("ec2", "us-east-1", endpoint_url=cloud.url, **key)
    tagged = [{"Name": "tag-key", "Values": ["cloudgpu:image"]}]
    images = ec2.describe_images(Owners=["self"], Filters=tagged)["Images"]
    return len(images), len(ec2.describe_snapshots(OwnerIds=["self"], Filters=tagged)["Snapshots"])


def killed_and_deleted(sandbox, place):
    sandbox.kill_at(place, *BAKE)
    # Before the bake has written anything down there is nothing to delete, and it says so.
    began = any(one.name == bake_cluster_name("base") for one in RecordStore(sandbox.home).clusters()) or own(
        sandbox
    ) != (
        0,
        0,
    )
    sandbox.run(*DELETE, code=0 if began else 2)
    assert own(sandbox) == (0, 0), place
    sandbox.check_empty(place, begun=began)


@pytest.fixture(scope="module")
def baked(running):
    """Record the kill points of an uninterrupted bake."""
    seen = running.sandboxes[0].record(*BAKE)
    assert own(running.sandboxes[0]) == (1, 1)
    running.sandboxes[0].run(*DELETE)
    running.sandboxes[0].check_empty("undisturbed")
    return seen


@pytest.mark.parametrize("place", ["CreateImage#1 effect"])
def test_image_delete_after_bake_killed_at_create_image_leaves_nothing(running, baked, place):
    assert place in baked.places
    killed_and_deleted(running.sandboxes[0], place)


@pytest.mark.full
def test_image_delete_after_bake_killed_around_any_call_leaves_nothing(running, baked):
    running.each(baked.calls, killed_and_deleted)


def deletion_killed(sandbox, place):
    sandbox.run(*BAKE)
    sandbox.kill_at(place, *DELETE)
    # What it had confirmed already is not there to be deleted any more.
    sandbox.run(*DELETE, code=0 if own(sandbox) != (0, 0) else 2)
    assert own(sandbox) == (0, 0), place
    sandbox.check_empty(place)


@pytest.mark.parametrize("place", ["DeregisterImage#1 effect", "DeleteSnapshot#1 effect"])
def test_image_delete_resumes_after_a_kill_at_image_or_snapshot(running, baked, place):
    deletion_killed(running.sandboxes[0], place)


@pytest.mark.full
def test_image_delete_resumes_after_a_kill_around_any_change(running, baked):
    sandbox = running.sandboxes[0]
    sandbox.run(*BAKE)
    running.each(sandbox.record(*DELETE).around_changes, deletion_killed)
