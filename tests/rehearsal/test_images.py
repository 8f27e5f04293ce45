"""`image bake`, `list` and `delete` as whole commands; a bake that is killed is taken up again."""

import json
import signal

import boto3
import pytest

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal


def ec2(bench):
    cloud = bench.cloud
    return boto3.client(
        "ec2",
        "us-east-1",
        endpoint_url=cloud.url,
        aws_access_key_id=cloud.access_key_id,
        aws_secret_access_key=cloud.secret_access_key,
    )


def own(bench):
    """Images and snapshots that carry our tag."""
    tagged = [{"Name": "tag-key", "Values": ["cloudgpu:image"]}]
    images = ec2(bench).describe_images(Owners=["self"], Filters=tagged)["Images"]
    snapshots = ec2(bench).describe_snapshots(OwnerIds=["self"], Filters=tagged)["Snapshots"]
    return len(images), len(snapshots)


def test_an_image_is_baked_used_and_deleted_and_a_killed_bake_goes_on(bench):
    bench.recipe()
    # The image is being made, and whoever asked for it dies before the answer comes.
    rule = {"id": "made", "action": "CreateImage", "phase": "after_effect", "do": "hold", "times": 1}
    client.put_faults(bench.cloud, [rule])
    process = bench.popen("image", "bake", "plain", "--name", "base", "--yes")
    bench.until_held(process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    process.stderr.close()
    client.put_faults(bench.cloud, [])
    client.release(bench.cloud)
    assert len(bench.left()["instances"]) == 1
    baked = bench.json("image", "bake", "plain", "--name", "base", "--yes")
    assert (baked["name"], baked["state"], baked["gpu_architecture"]) == ("base", "available", "Volta")
    assert baked["simulated"]
    assert baked["size_gib"] == 200
    assert float(baked["cost"]["usd"]) > 0
    assert own(bench) == (1, 1)
    assert bench.left() == {}  # the node is gone; the image is meant to stay
    again = bench.json("image", "bake", "plain", "--name", "base", "--yes", code=2)
    assert "already" in again["error"]["message"]
    (listed,) = bench.json("image", "list")["images"]
    assert listed["id"] == baked["id"]
    plan = bench.json("plan", "plain", "--set", f"resources.image={baked['id']}")
    assert {one["image"] for one in plan["candidates"]} == {baked["id"]}
    outcome = bench.json("train", "plain", "--yes", "--set", f"resources.image={baked['id']}")
    assert outcome["state"] == "succeeded"
    gone = bench.json("image", "delete", "base", "--yes")
    assert (gone["id"], gone["left"]) == (baked["id"], [])
    assert own(bench) == (0, 0)
    assert bench.left() == {}


def steps(bench, cluster):
    """What the bootstrap of its node did."""
    read = "cat $CLOUDGPU_NODE_ROOT/var/lib/cloudgpu/bootstrap.json"
    told = json.loads(bench.run("ssh", cluster, "--", "sh", "-c", f"'{read}'").stdout)
    return {step["name"]: step["state"] for step in told["steps"]}


def test_a_node_of_a_baked_image_finds_done_what_the_bake_installed(bench):
    bench.recipe()
    script = bench.work / "bare.yaml"
    script.write_text("description: Images without a driver.\nnodes: [{do: bare-image}]\n")
    bench.run("rehearsal", "fault", "apply", str(script))
    one = ("--set", "resources.nodes=1")
    bench.run("up", "plain", "--name", "bare", "--yes", *one)
    assert steps(bench, "bare")["driver"] == "done"
    baked = bench.json("image", "bake", "plain", "--name", "base", "--yes")
    bench.run("up", "plain", "--name", "ready", "--yes", *one, "--set", f"resources.image={baked['id']}")
    assert steps(bench, "ready")["driver"] == "skipped"
    bench.run("down", "bare", "ready")
    bench.run("image", "delete", "base", "--yes")
    assert bench.left() == {}
