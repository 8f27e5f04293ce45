"""Files of the rehearsal cloud that make no sense: it mends itself, or says which one is wrong and what to type."""

import json
import os
import shutil
from pathlib import Path

import pytest

from cloudgpu.rehearsal import client
from cloudgpu.rehearsal.layout import RehearsalFiles
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
harms = pytest.mark.parametrize("harm", HARMS)


def checked(done):
    """A command that ended well, or with a sentence about what is wrong; never with the network to blame."""
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
def test_the_clock_is_not_moved_out_of_its_limits(shared_workspace, by):
    done = shared_workspace.run("rehearsal", "advance", by, code=2)
    assert "3650 days" in done.stderr or "duration" in done.stderr
    assert shared_workspace.run("rehearsal", "status").returncode == 0


def test_several_moves_add_up_to_no_more(workspace):
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


def test_a_clock_that_was_broken_before_is_the_machines_again(workspace):
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


@harms
@pytest.mark.parametrize("name", ["time", "keys", "endpoint", "market", "nodes/host.json", "nodes/images.json"])
def test_a_stopped_cloud_with_a_damaged_file(workspace, name, harm):
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


@harms
def test_a_damaged_store_is_named_and_reset_begins_anew(workspace, harm):
    workspace.run("rehearsal", "start")
    workspace.recipe()
    workspace.run("up", "plain", "--yes")
    workspace.run("rehearsal", "stop")
    path = next(RehearsalFiles.of(workspace.home).state.glob("ec2@us-east-1*.pickle"))
    HARMS[harm](path)
    for command in (("rehearsal", "start"), ("down", "plain"), ("rehearsal", "stop")):
        done = checked(workspace.run(*command, code=None))
        if command[-1] == "start":
            assert done.returncode == 12
            assert str(path) in done.stderr
            assert "cloudgpu rehearsal reset" in done.stderr
    workspace.run("rehearsal", "reset", "--yes")
    workspace.run("rehearsal", "start")
    workspace.run("down", "plain")
    assert workspace.left() == {}
    assert workspace.json("status")["clusters"] == []


@pytest.mark.parametrize("harm", ["empty", "list", "pipe"])
@pytest.mark.parametrize("name", ["keys", "endpoint"])
def test_a_running_cloud_writes_what_it_is_found_by_anew(workspace, name, harm):
    before = workspace.cloud
    path = getattr(RehearsalFiles.of(workspace.home), name)
    HARMS[harm](path)
    checked(workspace.run("rehearsal", "start"))
    assert workspace.cloud == before
    HARMS[harm](path)
    checked(workspace.run("rehearsal", "stop"))
    assert process.running_server_pid(RehearsalFiles.of(workspace.home)) is None


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_record_of_a_node_costs_the_node_alone(workspace, harm):
    """The host boots a node anew whose record it cannot read: as after the loss of a disk."""
    workspace.recipe()
    made = workspace.json("up", "plain", "--yes")
    files = RehearsalFiles.of(workspace.home)
    os.kill(workspace.cloud.pid, 9)
    client.NodeHostClient(files.nodes).shutdown()
    HARMS[harm](files.nodes / "instances" / made["nodes"][0]["instance_id"] / "record.json")
    checked(workspace.run("rehearsal", "start"))
    checked(workspace.run("down", "plain"))
    assert workspace.left() == {}


@harms
def test_clusters_are_known_again_after_the_keys_were_damaged(workspace, harm):
    workspace.recipe()
    workspace.run("up", "plain", "--yes")
    workspace.run("rehearsal", "stop")
    HARMS[harm](RehearsalFiles.of(workspace.home).keys)
    checked(workspace.run("down", "plain"))
    assert workspace.json("status")["clusters"] == []


def test_reset_ends_nodes_that_run_without_a_server(workspace):
    workspace.recipe()
    workspace.run("up", "plain", "--yes")
    files = RehearsalFiles.of(workspace.home)
    os.kill(workspace.cloud.pid, 9)
    shutil.rmtree(files.state)
    workspace.run("rehearsal", "reset", "--yes")
    assert [path.name for path in files.root.iterdir()] == ["keys.json"]
    assert not client.NodeHostClient(files.nodes).running()
    assert workspace.json("rehearsal", "reset", "--yes") == {"simulated": True, "existed": False}


def test_reset_ends_a_server_that_is_deaf(workspace):
    cloud = workspace.cloud
    os.kill(cloud.pid, 19)  # SIGSTOP: it holds its lock and does not answer
    try:
        workspace.run("rehearsal", "reset", "--yes")
    finally:
        if process.is_alive(cloud.pid):
            os.kill(cloud.pid, 18)
    assert process.running_server_pid(RehearsalFiles.of(workspace.home)) is None
    assert workspace.cloud.access_key_id == cloud.access_key_id
