"""`image bake`, `list` and `delete` as whole commands; a killed bake is resumed."""

import json
import signal

import boto3
import pytest

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal


def ec2(workspace):
    cloud = workspace.cloud
    return boto3.client(
        "ec2",
        "us-east-1",
        endpoint_url=cloud.url,
        aws_access_key_id=cloud.access_key_id,
        aws_secret_access_key=cloud.secret_access_key,
    )


def own(workspace):
    """Count the images and snapshots with our tag."""
    tagged = [{"Name": "tag-key", "Values": ["cloudgpu:image"]}]
    images = ec2(workspace).describe_images(Owners=["self"], Filters=tagged)["Images"]
    snapshots = ec2(workspace).describe_snapshots(OwnerIds=["self"], Filters=tagged)["Snapshots"]
    return len(images), len(snapshots)


def test_killed_bake_resumes_and_its_image_is_usable_and_deletable(workspace):
    workspace.recipe()
    # The image is being made, and whoever asked for it dies before the answer comes.
    rule = {"id": "made", "action": "CreateImage", "phase": "after_effect", "do": "hold", "times": 1}
    client.put_faults(workspace.cloud, [rule])
    process = workspace.popen("image", "bake", "plain", "--name", "base", "--yes")
    workspace.until_held(process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    process.stderr.close()
    client.put_faults(workspace.cloud, [])
    client.release(workspace.cloud)
    assert len(workspace.left()["instances"]) == 1
    baked = workspace.json("image", "bake", "plain", "--name", "base", "--yes")
    assert (baked["name"], baked["state"], baked["gpu_architecture"]) == ("base", "available", "Volta")
    assert baked["simulated"]
    assert baked["size_gib"] == 200
    assert float(baked["cost"]["usd"]) > 0
    assert own(workspace) == (1, 1)
    assert workspace.left() == {}  # the node is gone; the image is meant to stay
    again = workspace.json("image", "bake", "plain", "--name", "base", "--yes", code=2)
    assert "already" in again["error"]["message"]
    (listed,) = workspace.json("image", "list")["images"]
    assert listed["id"] == baked["id"]
    plan = workspace.json("plan", "plain", "--set", f"resources.image={baked['id']}")
    assert {one["image"] for one in plan["candidates"]} == {baked["id"]}
    small = ("--set", f"resources.image={baked['id']}", "--set", "resources.disk=100GiB")
    refused = workspace.json("plan", "plain", *small, code=7)
    (error,) = [one for one in refused["findings"] if one["severity"] == "error"]
    assert (error["check"], error["fix"]) == ("root-disk", f"--set resources.disk={listed['size_gib']}GiB")
    outcome = workspace.json("train", "plain", "--yes", "--set", f"resources.image={baked['id']}")
    assert outcome["state"] == "succeeded"
    gone = workspace.json("image", "delete", "base", "--yes")
    assert (gone["id"], gone["left"]) == (baked["id"], [])
    assert own(workspace) == (0, 0)
    assert workspace.left() == {}


def steps(workspace, cluster):
    """Return the bootstrap steps of a cluster's node and their states."""
    read = "cat $CLOUDGPU_NODE_ROOT/var/lib/cloudgpu/bootstrap.json"
    told = json.loads(workspace.run("ssh", cluster, "--", "sh", "-c", f"'{read}'").stdout)
    return {step["name"]: step["state"] for step in told["steps"]}


def test_node_from_a_baked_image_skips_the_driver_installation(workspace):
    workspace.recipe()
    script = workspace.work / "bare.yaml"
    script.write_text("description: Images without a driver.\nnodes: [{do: bare-image}]\n")
    workspace.run("rehearsal", "fault", "apply", str(script))
    one = ("--set", "resources.nodes=1")
    workspace.run("up", "plain", "--name", "bare", "--yes", *one)
    assert steps(workspace, "bare")["driver"] == "done"
    baked = workspace.json("image", "bake", "plain", "--name", "base", "--yes")
    workspace.run("up", "plain", "--name", "ready", "--yes", *one, "--set", f"resources.image={baked['id']}")
    assert steps(workspace, "ready")["driver"] == "skipped"
    workspace.run("down", "bare", "ready")
    workspace.run("image", "delete", "base", "--yes")
    assert workspace.left() == {}
