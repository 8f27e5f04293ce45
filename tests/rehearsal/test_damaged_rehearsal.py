"""Damaged files of the rehearsal cloud: repaired, or named in an error that says what to type."""

import json
import os
import shutil
from datetime import timedelta
from pathlib import Path

import boto3
import pytest

from cloudgpu.clock import SystemClock
from cloudgpu.rehearsal import client
from cloudgpu.rehearsal.client import reset
from cloudgpu.rehearsal.layout import RehearsalFiles, ended_instances
from cloudgpu.rehearsal.server import process

pytestmark = pytest.mark.rehearsal
NETWORK = ("network", "connection refused", "does not answer", "does not respond", "could not connect", "Traceback")


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def huge(path: Path) -> None:
    os.truncate(path, 1 << 40)


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


HARMS = {
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(os.urandom(2000)),
    "truncated": truncated,
    "null": lambda path: path.write_text("null"),
    "list": lambda path: path.write_text("[1, 2, 3]"),
    "deep": lambda path: path.write_text("[" * 100_000),
    "pipe": pipe,
    "huge": huge,
}
ONE_NODE = "{instance_type: p3dn.24xlarge, nodes: 1, regions: [us-east-1]}"


def checked(done):
    """Check that a command succeeded, or failed with a hint and without blaming the network."""
    assert not [word for word in NETWORK if word in done.stderr], done.stderr
    assert done.returncode == 0 or "hint:" in done.stderr, done.stderr
    return done


@pytest.fixture(scope="module")
def shared_workspace(make_workspace, tmp_path_factory):
    with make_workspace(tmp_path_factory.mktemp("workspace")) as made:
        made.recipe()
        made.run("rehearsal", "start")
        yield made


@pytest.mark.parametrize("by", ["99999999999999d", "3651d", "9" * 400 + "d"])
def test_clock_advance_beyond_the_limit_is_rejected(shared_workspace, by):
    done = shared_workspace.run("rehearsal", "advance", by, code=2)
    assert "3650 days" in done.stderr or "duration" in done.stderr
    assert shared_workspace.run("rehearsal", "status").returncode == 0


def test_repeated_advances_cannot_exceed_the_clock_limit(workspace):
    workspace.run("rehearsal", "advance", "3000d")
    done = workspace.run("rehearsal", "advance", "3000d", code=12)
    assert "at most 3650 days" in done.stderr
    workspace.run("rehearsal", "advance", "3000d", "--back")
    for _ in range(2):
        workspace.run("rehearsal", "advance", "1500d", "--back")
    checked(workspace.run("rehearsal", "advance", "1500d", "--back", code=12))
    workspace.run("rehearsal", "advance", "3000d")
    workspace.recipe()
    workspace.run("train", "plain", "--yes")
    assert workspace.left() == {}


def test_out_of_range_clock_file_is_discarded_at_startup(workspace):
    workspace.run("rehearsal", "start")
    workspace.run("rehearsal", "stop")
    files = RehearsalFiles.of(workspace.home)
    files.time.write_text(json.dumps({"ahead_s": 99999999999999 * 86400.0}))
    (files.nodes / "host.json").parent.mkdir(exist_ok=True)
    (files.nodes / "host.json").write_text(json.dumps({"offset_s": 99999999999999 * 86400.0, "credentials": 7}))
    workspace.recipe()
    workspace.run("train", "plain", "--yes")
    assert workspace.left() == {}
    assert not files.time.exists()


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("name", ["time", "keys", "endpoint", "market", "nodes/host.json", "nodes/images.json"])
def test_damaged_file_is_repaired_or_named_at_startup(workspace, name, harm):
    workspace.run("rehearsal", "quota", "us-east-1/p/on-demand=960")
    workspace.run("rehearsal", "advance", "1h")
    workspace.run("rehearsal", "stop")
    files = RehearsalFiles.of(workspace.home)
    path = getattr(files, name, None) or files.root / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    HARMS[harm](path)
    done = checked(workspace.run("rehearsal", "start", code=None))
    if done.returncode:
        assert name == "market"
        assert str(path) in done.stderr
        path.unlink()
    workspace.run("rehearsal", "start")
    workspace.run("rehearsal", "advance", "1h")
    workspace.run("rehearsal", "status")
    workspace.run("rehearsal", "stop")


def test_damaged_snapshot_is_named_and_reset_recovers(workspace):
    workspace.run("rehearsal", "start")
    workspace.recipe()
    workspace.run("up", "plain", "--yes")
    workspace.run("rehearsal", "stop")
    path = next(RehearsalFiles.of(workspace.home).state.glob("ec2@us-east-1*.pickle"))
    intact = path.read_bytes()
    for harm in HARMS.values():
        harm(path)
        for command in (("rehearsal", "start"), ("down", "plain"), ("rehearsal", "stop")):
            done = checked(workspace.run(*command, code=None))
            if command[-1] == "start":
                assert done.returncode == 12
                assert str(path) in done.stderr
                assert "cloudgpu rehearsal reset" in done.stderr
        path.unlink()
        path.write_bytes(intact)
    truncated(path)
    workspace.run("rehearsal", "reset", "--yes")
    workspace.run("rehearsal", "start")
    workspace.run("down", "plain")
    assert workspace.left() == {}
    assert workspace.json("status")["clusters"] == []


@pytest.mark.parametrize("harm", ["empty", "list", "pipe"])
@pytest.mark.parametrize("name", ["keys", "endpoint"])
def test_running_cloud_rewrites_damaged_keys_and_endpoint_files(workspace, name, harm):
    before = workspace.cloud
    path = getattr(RehearsalFiles.of(workspace.home), name)
    HARMS[harm](path)
    checked(workspace.run("rehearsal", "start"))
    assert workspace.cloud == before
    HARMS[harm](path)
    checked(workspace.run("rehearsal", "stop"))
    assert process.running_server_pid(RehearsalFiles.of(workspace.home)) is None


def test_damaged_node_record_does_not_prevent_down(workspace):
    """The host boots a node afresh if it cannot read the record, as after the loss of a disk."""
    workspace.recipe(resources=ONE_NODE)
    made = workspace.json("up", "plain", "--yes")
    files = RehearsalFiles.of(workspace.home)
    for harm in HARMS.values():
        os.kill(workspace.cloud.pid, 9)
        client.NodeHostClient(files.nodes).shutdown()
        harm(files.nodes / "instances" / made["nodes"][0]["instance_id"] / "record.json")
        checked(workspace.run("rehearsal", "start"))
        (cluster,) = workspace.json("status")["clusters"]
        assert cluster["state"] == "up"
    checked(workspace.run("down", "plain"))
    assert workspace.left() == {}


def test_down_works_after_the_keys_file_was_damaged(workspace):
    workspace.recipe(resources=ONE_NODE)
    workspace.run("up", "plain", "--yes")
    for harm in HARMS.values():
        workspace.run("rehearsal", "stop")
        harm(RehearsalFiles.of(workspace.home).keys)
        checked(workspace.run("rehearsal", "start"))
    workspace.run("rehearsal", "stop")
    truncated(RehearsalFiles.of(workspace.home).keys)
    checked(workspace.run("down", "plain"))
    assert workspace.json("status")["clusters"] == []


def test_reset_stops_nodes_that_run_without_a_server(workspace):
    workspace.recipe()
    workspace.run("up", "plain", "--yes")
    files = RehearsalFiles.of(workspace.home)
    os.kill(workspace.cloud.pid, 9)
    shutil.rmtree(files.state)
    workspace.run("rehearsal", "reset", "--yes")
    assert sorted(path.name for path in files.root.iterdir()) == ["ended.json", "keys.json"]
    assert not client.NodeHostClient(files.nodes).running()
    assert workspace.json("rehearsal", "reset", "--yes") == {"simulated": True, "existed": False}
    (cluster,) = workspace.json("status")["clusters"]
    assert (cluster["state"], float(cluster["hourly_usd"])) == ("terminated", 0)


def test_status_after_a_reset_shows_clusters_of_the_deleted_cloud_as_terminated(workspace):
    workspace.recipe()
    workspace.run("up", "plain", "--yes")
    workspace.run("rehearsal", "reset", "--yes")
    (cluster,) = workspace.json("status")["clusters"]
    assert (cluster["state"], float(cluster["hourly_usd"])) == ("terminated", 0)
    workspace.run("rehearsal", "advance", "1h")
    (later,) = workspace.json("status")["clusters"]
    assert (later["state"], later["spent_usd"]) == ("terminated", cluster["spent_usd"])
    workspace.run("down", "plain")
    assert workspace.json("status")["clusters"] == []


def test_reset_keeps_the_times_of_instances_that_ended_before(workspace):
    workspace.recipe()
    workspace.run("up", "plain", "--yes")
    workspace.run("rehearsal", "stop")
    ended = ended_instances(workspace.home)
    assert len(ended) == workspace.json("status")["clusters"][0]["nodes"]
    assert reset(workspace.home, SystemClock().now() + timedelta(hours=5))
    assert ended_instances(workspace.home) == ended


def test_reset_records_only_instances_that_it_ended(workspace, until):
    workspace.recipe()
    made = workspace.json("up", "plain", "--yes")
    first, *others = [node["instance_id"] for node in made["nodes"]]
    cloud = workspace.cloud
    key = {"aws_access_key_id": cloud.access_key_id, "aws_secret_access_key": cloud.secret_access_key}
    ec2 = boto3.client("ec2", region_name="us-east-1", endpoint_url=cloud.url, **key)
    ec2.terminate_instances(InstanceIds=[first])
    host = client.NodeHostClient(RehearsalFiles.of(workspace.home).nodes)
    until(lambda: {report.state for report in host.list() if report.instance_id == first} == {"off"})
    os.kill(workspace.cloud.pid, 9)
    shutil.rmtree(RehearsalFiles.of(workspace.home).state)
    workspace.run("rehearsal", "reset", "--yes")
    assert sorted(ended_instances(workspace.home)) == sorted(others)


def test_stop_of_a_cloud_that_cannot_be_loaded_records_its_instances(workspace):
    workspace.recipe()
    made = workspace.json("up", "plain", "--yes")
    os.kill(workspace.cloud.pid, 9)
    path = next(RehearsalFiles.of(workspace.home).state.glob("ec2@us-east-1*.pickle"))
    path.write_bytes(b"damaged")
    checked(workspace.run("rehearsal", "stop", code=None))
    assert sorted(ended_instances(workspace.home)) == sorted(node["instance_id"] for node in made["nodes"])


def test_reset_kills_an_unresponsive_server(workspace):
    cloud = workspace.cloud
    os.kill(cloud.pid, 19)  # SIGSTOP: it holds its lock and does not answer
    try:
        workspace.run("rehearsal", "reset", "--yes")
    finally:
        if process.is_alive(cloud.pid):
            os.kill(cloud.pid, 18)
    assert process.running_server_pid(RehearsalFiles.of(workspace.home)) is None
    assert workspace.cloud.access_key_id == cloud.access_key_id
