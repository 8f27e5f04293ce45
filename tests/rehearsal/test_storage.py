"""Storage by whole commands: outlives clusters, cannot be deleted while in use, and is deleted by name."""

import shutil
import time

import boto3
import pytest

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal


def aws(workspace, service: str):
    cloud = workspace.cloud
    return boto3.client(
        service,
        region_name="us-east-1",
        endpoint_url=cloud.url,
        aws_access_key_id=cloud.access_key_id,
        aws_secret_access_key=cloud.secret_access_key,
    )


def create(workspace, name: str, kind: str, *options: str) -> dict:
    return workspace.json("storage", "create", name, "--kind", kind, "--on", "rehearsal", "--yes", *options)


def test_storage_in_use_is_kept_when_its_cluster_is_deleted(workspace):
    disk = create(workspace, "disk", "ebs", "--size", "100", "--zone", "us-east-1c", "--disposable")
    files = create(workspace, "files", "efs")
    up = workspace.json("up", str(workspace.recipe()), "--name", "demo", "--on", "rehearsal", "--yes")
    (node, other) = [one["instance_id"] for one in up["nodes"]]
    aws(workspace, "ec2").attach_volume(VolumeId=disk["id"], InstanceId=node, Device="/dev/sdf")
    (interface,) = aws(workspace, "ec2").describe_network_interfaces(
        Filters=[{"Name": "attachment.instance-id", "Values": [other]}]
    )["NetworkInterfaces"]
    groups = [group["GroupId"] for group in interface["Groups"]]
    aws(workspace, "ec2").modify_network_interface_attribute(
        NetworkInterfaceId=interface["NetworkInterfaceId"], Groups=[*groups, files["security_group_id"]]
    )

    rows = {row["name"]: row for row in workspace.json("storage", "list")["storage"]}
    assert rows["disk"]["used_by"] == [f"{node} (cluster demo)"]
    assert rows["files"]["used_by"] == [f"{other} (cluster demo)"]
    assert (rows["disk"]["monthly_usd"], rows["disk"]["size_gib"]) == ("8.00", "100")
    refused = workspace.json("storage", "delete", "disk", "--yes", code=11)
    assert "cluster demo" in refused["error"]["message"]

    workspace.run("down", "demo")
    left = workspace.left()
    assert [row["id"] for row in left["volumes"]] == [disk["id"]]
    assert [row["id"] for row in left["file_systems"]] == [files["id"]]
    assert "instances" not in left

    workspace.run("storage", "delete", "disk", "--yes")
    workspace.run("storage", "delete", "files", "--delete-data", "--yes")
    assert workspace.left() == {}


def test_storage_without_a_record_is_deleted_by_its_tags(workspace):
    made = create(workspace, "logs", "s3")
    aws(workspace, "s3").put_object(Bucket=made["id"], Key="run/log", Body=b"x" * 2048)
    shutil.rmtree(workspace.home.root / "storage")
    (row,) = workspace.json("storage", "list")["storage"]
    assert (row["name"], row["id"], row["size_gib"]) == ("logs", made["id"], "0.0000019073486328125")
    deleted = workspace.json("storage", "delete", "logs", "--delete-data", "--yes")
    assert (deleted["known"], deleted["left"]) == (False, [])
    assert workspace.left() == {}


def test_delete_removes_storage_of_a_killed_create(workspace):
    hold = {"service": "fsx", "action": "CreateFileSystem", "phase": "after_effect", "do": "hold", "drop": True}
    client.put_faults(workspace.cloud, [hold])
    options = ("sets", "--kind", "lustre", "--size", "1200", "--zone", "us-east-1c", "--on", "rehearsal", "--yes")
    process = workspace.popen("storage", "create", *options)
    workspace.until_held(process)
    process.kill()
    process.communicate()
    client.put_faults(workspace.cloud, [])
    assert len(workspace.left()["file_systems"]) == 1
    deleted = workspace.json("storage", "delete", "sets", "--yes")
    assert deleted["known"]
    assert workspace.left() == {}


KINDS = {
    "efs": (),
    "lustre": ("--size", "1200", "--zone", "us-east-1c"),
    "ebs": ("--size", "8", "--zone", "us-east-1c"),
    "s3": (),
}


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_delete_after_a_create_killed_at_any_call_leaves_nothing(workspace, kind):
    options = ("sets", "--kind", kind, *KINDS[kind], "--on", "rehearsal", "--yes")
    for nth in range(1, 30):
        hold = {"mutating": True, "nth": nth, "phase": "after_effect", "do": "hold", "drop": True}
        client.put_faults(workspace.cloud, [hold])
        process = workspace.popen("storage", "create", *options)
        while process.poll() is None and not client.faults(workspace.cloud)["held"]:
            time.sleep(0.02)
        ended = process.poll() is not None
        process.kill()
        process.communicate()
        client.put_faults(workspace.cloud, [])
        workspace.run("storage", "delete", "sets", "--delete-data", "--yes")
        assert workspace.left() == {}, nth
        if ended:
            assert nth > 1
            return
    pytest.fail("it makes more calls than were thought possible")
