"""Whole commands with `--engine pulumi`: creation, deletion, and kills during the launch."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from cloudgpu.aws.session.session import CloudEndpoint, connect
from cloudgpu.rehearsal import client

pytestmark = [
    pytest.mark.pulumi,
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


@pytest.fixture
def engine(pulumi_cli: Path) -> dict[str, str]:
    return {"CLOUDGPU_ENGINE": "pulumi", "CLOUDGPU_PULUMI_COMMAND": str(pulumi_cli)}


def test_up_and_down_work_with_the_pulumi_cli(workspace, engine):
    folder = workspace.recipe()
    up = workspace.json("up", str(folder), "--yes", env=engine)
    record = json.loads(workspace.home.cluster("plain").record.read_text())
    assert record["engine"] == "pulumi"
    assert len(up["nodes"]) == 2
    refused = workspace.json("up", str(folder), "--yes", "--engine", "direct", code=2)
    assert "created with the pulumi engine, not direct" in refused["error"]["message"]
    # No engine is requested, so the recorded one is used.
    again = workspace.json(
        "up", str(folder), "--yes", env={"CLOUDGPU_PULUMI_COMMAND": engine["CLOUDGPU_PULUMI_COMMAND"]}
    )
    assert [node["instance_id"] for node in again["nodes"]] == [node["instance_id"] for node in up["nodes"]]
    workspace.run("down", "plain", env=engine)
    assert workspace.left() == {}
    assert not any((workspace.home.pulumi / "rehearsal" / "projects").iterdir())


def test_down_without_the_cli_deletes_everything_by_tag(workspace, engine, tmp_path):
    workspace.run("up", str(workspace.recipe()), "--yes", env=engine)
    done = workspace.run("down", "plain", env={"CLOUDGPU_PULUMI_COMMAND": str(tmp_path / "gone")})
    assert "searching by tag instead" in done.stdout
    assert workspace.left() == {}


def test_several_spot_nodes_are_refused_and_a_single_one_is_launched(workspace, engine):
    workspace.recipe()
    spot = ("plain", "--yes", "--set", "resources.market=spot")
    for verb in ("up", "train"):
        refused = workspace.run(verb, *spot, env=engine, code=7)
        assert "the pulumi engine cannot launch 2 spot nodes all or none" in refused.stderr
    assert not workspace.home.cluster("plain").record.exists()
    assert not workspace.home.pulumi.exists()
    assert client.list_resources(workspace.cloud)["instances"] == []

    workspace.run("up", *spot, "--set", "resources.nodes=1", env=engine)
    (node,) = client.nodes(workspace.cloud)
    cloud = workspace.cloud
    endpoint = CloudEndpoint(cloud.url, cloud.access_key_id, cloud.secret_access_key)
    described = connect(endpoint, cloud.region).client("ec2").describe_instances()
    (instance,) = described["Reservations"][0]["Instances"]
    assert (instance["InstanceId"], instance["InstanceLifecycle"]) == (node.instance_id, "spot")
    workspace.run("down", "plain", env=engine)
    assert workspace.left() == {}


OPTIONS = {
    "efs": [],
    "lustre": ["--size", "1200", "--zone", "us-east-1c"],
    "ebs": ["--size", "10", "--zone", "us-east-1c"],
    "s3": [],
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_storage_is_created_and_deleted_with_the_cli(workspace, engine, kind):
    options = ["storage", "create", "mine", "--kind", kind, "--on", "rehearsal", *OPTIONS[kind], "--yes"]
    first = workspace.json(*options, env=engine)
    assert json.loads(workspace.home.storage("mine").record.read_text())["engine"] == "pulumi"
    assert workspace.json(*options, env=engine)["id"] == first["id"]
    refused = workspace.json(*options, env={"CLOUDGPU_ENGINE": "direct"}, code=2)
    assert "created with the pulumi engine, not direct" in refused["error"]["message"]
    direct = [*options[:2], "other", *options[3:]]
    assert {key for key, value in workspace.json(*direct).items() if value} == {
        key for key, value in first.items() if value
    }
    for name in ("mine", "other"):
        workspace.run(
            "storage",
            "delete",
            name,
            "--delete-data",
            "--on",
            "rehearsal",
            "--yes",
            env={"CLOUDGPU_PULUMI_COMMAND": engine["CLOUDGPU_PULUMI_COMMAND"]},
        )
    assert workspace.left() == {}
    assert not any((workspace.home.pulumi / "rehearsal" / "projects").iterdir())


HOLD = {"do": "hold", "action": "CreateFleet"}
LAUNCH_FAULTS = {
    "never sent": {**HOLD, "drop": True},
    "sent, and carried out while the next command runs": HOLD,
    "carried out, and never answered": {**HOLD, "phase": "after_effect", "drop": True},
}


def kill_during_launch(workspace, engine, rule):
    """Kill only the command while the launch is held; its Pulumi CLI and plugin keep running."""
    client.put_faults(workspace.cloud, [rule])
    process = workspace.popen("up", "plain", "--yes", env=engine)
    workspace.until_held(process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    client.put_faults(workspace.cloud, [])
    client.release(workspace.cloud)


def test_down_after_a_kill_during_launch_leaves_nothing(workspace, engine):
    workspace.recipe()
    for case, rule in LAUNCH_FAULTS.items():
        kill_during_launch(workspace, engine, rule)
        workspace.run("down", "plain", env=engine)
        time.sleep(1.0)  # a process that survived the kill would create something now
        assert workspace.left() == {}, case


def test_up_after_a_kill_during_launch_completes_the_cluster(workspace, engine):
    workspace.recipe()
    for case, rule in LAUNCH_FAULTS.items():
        kill_during_launch(workspace, engine, rule)
        up = workspace.json("up", "plain", "--yes", env=engine)
        assert len(up["nodes"]) == 2, case
        assert len(client.list_resources(workspace.cloud)["instances"]) == 2, case
        workspace.run("down", "plain", env=engine)
        assert workspace.left() == {}, case


def running_cli(workspace) -> int:
    (note,) = workspace.home.pulumi.glob("rehearsal/projects/*/running")
    return int(json.loads(note.read_text())["pid"])


def plugin_of(cli: int) -> int:
    """Return the PID of the CLI's child process that is our plugin."""
    for path in Path("/proc").glob("[0-9]*"):
        parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
        if int(parent) == cli and b"cloudgpu.engine.plugin" in (path / "cmdline").read_bytes():
            return int(path.name)
    raise AssertionError(cli)


@pytest.mark.parametrize("victim", ["the CLI", "the plugin"])
def test_up_fails_and_leaves_nothing_if_cli_or_plugin_dies(workspace, engine, victim):
    workspace.recipe()
    client.put_faults(workspace.cloud, [LAUNCH_FAULTS["carried out, and never answered"]])
    process = workspace.popen("up", "plain", "--yes", env=engine)
    workspace.until_held(process)
    cli = running_cli(workspace)
    os.kill(cli if victim == "the CLI" else plugin_of(cli), signal.SIGKILL)
    client.put_faults(workspace.cloud, [])
    client.release(workspace.cloud)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 8, out + err
    assert workspace.left() == {}
    assert not workspace.home.cluster("plain").record.exists()
