"""Datasets and checkpoints by whole commands: an s3fs mount, and a run that resumes from a checkpoint."""

import boto3
import pytest

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal

TRAIN = """
    import os, pathlib, sys, time

    data, ckpt = map(pathlib.Path, sys.argv[1:3])
    print("reads", (data / "sub" / "b.txt").read_text(), flush=True)
    print("mounted", any(line.split()[4] == str(data) for line in open("/proc/self/mountinfo")), flush=True)
    try:
        (data / "new").write_text("x")
        print("it could be written", flush=True)
    except OSError as error:
        print("refused", error.strerror, flush=True)
    ckpt.mkdir(exist_ok=True)
    before = sorted(path.name for path in ckpt.iterdir())
    print("begins with", before, flush=True)
    if os.environ["RANK"] == "0":
        (ckpt / f"epoch-{len(before)}.pt").write_bytes(os.urandom(1000))
        pathlib.Path("out/deep").mkdir(parents=True)
        pathlib.Path("out/deep/figures.csv").write_text("1,2")
"""


def s3(workspace):
    cloud = workspace.cloud
    return boto3.client(
        "s3",
        region_name="us-east-1",
        endpoint_url=cloud.url,
        aws_access_key_id=cloud.access_key_id,
        aws_secret_access_key=cloud.secret_access_key,
    )


@pytest.mark.main_path
def test_mounted_data_is_read_only_and_next_run_resumes_checkpoint(workspace):
    folder = workspace.recipe(
        script=TRAIN,
        resources="{instance_type: p3dn.24xlarge, nodes: 1, regions: [us-east-1]}",
        params="{x: 1}",
        data="[{name: sets, from: 's3://sets/digits', to: /data/sets, mode: mount}]",
        launch="{with: torchrun, ranks_per_node: 1, command: 'train.py {data.sets} {checkpoint}'}",
        metrics="{}",
        outputs="[out]",
        outputs_to="s3://results/of/{run}",
        checkpoint="{path: ckpt, to: 's3://kept/runs'}",
        rehearsal="{objects: {'s3://sets/digits': sets}}",
    )
    (folder / "sets" / "sub").mkdir(parents=True)
    (folder / "sets" / "sub" / "b.txt").write_text("digits")
    workspace_s3 = s3(workspace)
    workspace_s3.create_bucket(Bucket="kept")
    workspace_s3.create_bucket(Bucket="results")
    first = workspace.json("train", "plain", "--on", "rehearsal", "--yes", "--keep")
    assert first["state"] == "succeeded", first["tail"]
    lines = (workspace.home.run(first["run_id"]).root / "logs" / "rank-0.log").read_text()
    assert "reads digits\nmounted True\nrefused Read-only file system\nbegins with []" in lines
    assert "checkpoint: 1 file, 1000 B, at s3://kept/runs" in first["notes"]
    keys = [one["Key"] for one in workspace_s3.list_objects_v2(Bucket="kept")["Contents"]]
    assert keys == ["runs/epoch-0.pt"]
    assert f"outputs: 1 file, 3 B, at s3://results/of/{first['run_id']}" in first["notes"]
    keys = [one["Key"] for one in workspace_s3.list_objects_v2(Bucket="results")["Contents"]]
    assert keys == [f"of/{first['run_id']}/out/deep/figures.csv"]
    assert (workspace.home.run(first["run_id"]).outputs / "out" / "deep" / "figures.csv").read_text() == "1,2"
    table = workspace.run("ssh", first["cluster"], "--", "cat", "/proc/self/mountinfo").stdout
    assert "/data/sets" not in table
    second = workspace.json("train", "plain", "--on", "rehearsal", "--yes", "--cluster", first["cluster"])
    assert second["state"] == "succeeded", second["tail"]
    lines = (workspace.home.run(second["run_id"]).root / "logs" / "rank-0.log").read_text()
    assert "reads digits\nmounted True" in lines
    assert "begins with ['epoch-0.pt']" in lines
    workspace.run("down", first["cluster"])
    assert workspace.left().keys() <= {"buckets"}


def test_unreadable_data_is_reported_before_launch(workspace):
    folder = workspace.recipe(
        data="[{name: sets, from: 's3://closed/digits', to: /data/sets}]",
        rehearsal="{objects: {'s3://closed/digits': sets}}",
    )
    (folder / "sets").mkdir()
    (folder / "sets" / "a.txt").write_text("1")
    client.put_faults(
        workspace.cloud,
        [{"id": "closed", "service": "s3", "action": "HeadObject", "do": "error", "code": "403", "http": 403}],
    )
    refused = workspace.run("train", "plain", "--on", "rehearsal", "--yes", code=None)
    assert refused.returncode in (8, 3), refused.stderr
    assert "reading s3://closed/digits/a.txt" in refused.stderr
    assert workspace.left().keys() <= {"buckets"}


SHOW = """
    import os, pathlib, sys

    sets, notes = map(pathlib.Path, sys.argv[1:3])
    for path in sorted([*sets.rglob("*"), *notes.rglob("*")]):
        if path.is_file():
            mode = oct(path.stat().st_mode & 0o777)
            print("has", path.name, path.read_text().strip(), mode, path.is_symlink(), flush=True)
"""


def test_data_is_downloaded_once_and_copied_from_the_first_node(workspace):
    """Three nodes get one download from S3 and one upload; the head copies both, and later changes, to the others."""
    folder = workspace.recipe(
        script=SHOW,
        resources="{instance_type: p3dn.24xlarge, nodes: 3, regions: [us-east-1]}",
        params="{x: 1}",
        data="""
            - {name: sets, from: 's3://sets/digits/', to: /data/sets, share: head}
            - {name: notes, from: notes, to: /data/notes, share: head}
        """,
        launch="{with: torchrun, ranks_per_node: 1, command: 'train.py {data.sets} {data.notes}'}",
        metrics="{}",
        outputs="[]",
        rehearsal="{objects: {'s3://sets/digits/': sets}}",
    )
    (folder / "sets").mkdir()
    (folder / "sets/one").write_text("digits")
    (folder / "notes").mkdir()
    (folder / "notes/first").write_text("said")
    (folder / "notes/first").chmod(0o750)
    (folder / "notes/again").symlink_to("first")
    workspace.run("up", "plain", "--on", "rehearsal", "--yes", "--name", "trio")
    done = workspace.run("train", "plain", "--cluster", "trio", "--on", "rehearsal", "--yes")
    for line in ("has one digits 0o644 False", "has first said 0o750 False", "has again said 0o750 True"):
        assert done.stdout.count(line) == 3, done.stdout
    assert "data sets: 6 B transferred" in done.stdout, "once, from S3"
    assert "data notes: 4 B transferred" in done.stdout, "once, from here"
    assert done.stdout.count("copying from node 0 to the other nodes") == 2
    (folder / "notes/first").write_text("sung")
    (folder / "notes/again").unlink()
    more = workspace.run("train", "plain", "--cluster", "trio", "--on", "rehearsal", "--yes")
    assert more.stdout.count("has first sung 0o750 False") == 3
    assert "has again" not in more.stdout
    assert "data sets: 0 B transferred" in more.stdout
    workspace.run("down", "trio", "--yes")
