from datetime import UTC, datetime

import pytest

from cloudgpu.app.images import DeletedImage
from cloudgpu.aws.ec2.machine_images import (
    delete_image,
    find_images,
    find_orphaned_snapshots,
    start_image,
    wait_for_image,
)
from cloudgpu.cli.commands.image import deleted_lines, image_lines
from cloudgpu.cloud import OwnImage
from cloudgpu.errors import CloudError

ROW = {
    "ImageId": "ami-1",
    "State": "available",
    "CreationDate": "2026-11-21T03:00:00.000Z",
    "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"SnapshotId": "snap-1", "VolumeSize": 150}}],
    "Tags": [
        {"Key": "cloudgpu:image", "Value": "base"},
        {"Key": "cloudgpu:owner", "Value": "ann"},
        {"Key": "cloudgpu:gpu-architecture", "Value": "Volta"},
    ],
}


def asked(name: str = "") -> dict:
    one = (
        {"Name": "tag:cloudgpu:image", "Values": [name]} if name else {"Name": "tag-key", "Values": ["cloudgpu:image"]}
    )
    return {"Owners": ["self"], "Filters": [one]}


def test_only_self_owned_images_are_found(scripted) -> None:
    scripted.stub("ec2").add_response("describe_images", {"Images": [ROW]}, asked())
    (image,) = find_images(scripted)
    assert (image.name, image.owner, image.size_gib, image.snapshots) == ("base", "ann", 150, ("snap-1",))
    assert image.made_at == datetime(2026, 11, 21, 3, tzinfo=UTC)


def test_create_image_tags_image_and_snapshot_without_cluster_tag(scripted) -> None:
    tags = [
        {"Key": "Name", "Value": "cloudgpu-base"},
        {"Key": "cloudgpu:image", "Value": "base"},
        {"Key": "cloudgpu:owner", "Value": "ann"},
    ]
    scripted.stub("ec2").add_response(
        "create_image",
        {"ImageId": "ami-1"},
        {
            "InstanceId": "i-1",
            "Name": "cloudgpu-base",
            "Description": "cloudgpu image base",
            "TagSpecifications": [{"ResourceType": kind, "Tags": tags} for kind in ("image", "snapshot")],
        },
    )
    assert start_image(scripted, "i-1", "base", {"cloudgpu:owner": "ann"}) == "ami-1"


def test_wait_for_image_polls_until_available(scripted, clock) -> None:
    ec2 = scripted.stub("ec2")
    ec2.add_response("describe_images", {"Images": [{**ROW, "State": "pending"}]}, asked("base"))
    ec2.add_response("describe_images", {"Images": [ROW]}, asked("base"))
    assert wait_for_image(scripted, clock, "base").state == "available"
    scripted.done()


def test_wait_for_image_fails_when_image_creation_failed(scripted, clock) -> None:
    scripted.stub("ec2").add_response("describe_images", {"Images": [{**ROW, "State": "failed"}]}, asked("base"))
    with pytest.raises(CloudError, match="could not create") as caught:
        wait_for_image(scripted, clock, "base")
    assert "image delete base" in caught.value.hint


def test_delete_image_removes_snapshots_of_deregistered_image(scripted) -> None:
    ec2 = scripted.stub("ec2")
    ec2.add_client_error("deregister_image", "InvalidAMIID.Unavailable")
    ec2.add_response("delete_snapshot", {}, {"SnapshotId": "snap-1"})
    made_at = datetime(2026, 11, 21, tzinfo=UTC)
    delete_image(scripted, OwnImage("ami-1", "base", "us-east-1", "available", made_at, 150, ("snap-1",), {}))
    scripted.done()


def test_image_list_and_delete_messages(scripted) -> None:
    scripted.stub("ec2").add_response("describe_images", {"Images": [ROW]})
    images = find_images(scripted)
    now = datetime(2026, 11, 21, 5, tzinfo=UTC)
    assert image_lines(images, now, "us-east-1") == [
        "name  image  state      for    region     owner  age  GiB  $/month at most",
        "base  ami-1  available  Volta  us-east-1  ann    2 h  150            $7.50",
    ]
    assert image_lines((), now, "us-east-1") == ["no images in us-east-1"]
    assert deleted_lines(DeletedImage(images[0], node=False), "base") == [
        "image base (ami-1) and 1 snapshot are deleted"
    ]
    assert deleted_lines(DeletedImage(None, node=True), "base") == [
        "image base does not exist",
        "  the node of an interrupted `image bake` is also terminated",
    ]


def test_orphaned_snapshot_is_found_and_deleted(scripted) -> None:
    rows = [
        {"SnapshotId": one, "StartTime": datetime(2026, 11, 21, tzinfo=UTC), "VolumeSize": 150, "Tags": ROW["Tags"]}
        for one in ("snap-1", "snap-2")
    ]
    filters = [{"Name": "tag:cloudgpu:image", "Values": ["base"]}]
    ec2 = scripted.stub("ec2")
    ec2.add_response("describe_images", {"Images": [ROW]}, asked("base"))
    ec2.add_response("describe_snapshots", {"Snapshots": rows}, {"OwnerIds": ["self"], "Filters": filters})
    (orphan,) = find_orphaned_snapshots(scripted, "base", find_images(scripted, "base"))
    assert (orphan.id, orphan.name, orphan.owner, orphan.snapshots) == ("", "base", "ann", ("snap-2",))
    ec2.add_response("delete_snapshot", {}, {"SnapshotId": "snap-2"})
    delete_image(scripted, orphan)
    scripted.done()
