"""Whole commands with `--engine pulumi`: from nothing to nothing, and killed in the middle."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from cloudgpu.rehearsal import client

pytestmark = [
    pytest.mark.pulumi,
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


@pytest.fixture
def engine(command: Path) -> dict[str, str]:
    return {"CLOUDGPU_ENGINE": "pulumi", "CLOUDGPU_PULUMI_COMMAND": str(command)}


def test_up_and_down_with_the_cli(bench, engine):
    folder = bench.recipe()
    up = bench.json("up", str(folder), "--yes", env=engine)
    record = json.loads(bench.home.cluster("plain").record.read_text())
    assert record["engine"] == "pulumi"
    assert len(up["nodes"]) == 2
    refused = bench.json("up", str(folder), "--yes", "--engine", "direct", code=2)
    assert "made by the pulumi engine, not the direct engine" in refused["error"]["message"]
    # nobody names an engine: the record does
    again = bench.json("up", str(folder), "--yes", env={"CLOUDGPU_PULUMI_COMMAND": engine["CLOUDGPU_PULUMI_COMMAND"]})
    assert [node["instance_id"] for node in again["nodes"]] == [node["instance_id"] for node in up["nodes"]]
    bench.run("down", "plain", env=engine)
    assert bench.left() == {}
    assert not any((bench.home.pulumi / "rehearsal" / "projects").iterdir())


def test_without_the_cli_down_still_ends_everything_by_tag(bench, engine, tmp_path):
    bench.run("up", str(bench.recipe()), "--yes", env=engine)
    done = bench.run("down", "plain", env={"CLOUDGPU_PULUMI_COMMAND": str(tmp_path / "gone")})
    assert "looking for what it knew by tags" in done.stdout
    assert bench.left() == {}


WISHES = {
    "efs": [],
    "lustre": ["--size", "1200", "--zone", "us-east-1c"],
    "ebs": ["--size", "10", "--zone", "us-east-1c"],
    "s3": [],
}


@pytest.mark.parametrize("kind", WISHES)
def test_storage_is_made_and_deleted_with_the_cli(bench, engine, kind):
    wish = ["storage", "create", "mine", "--kind", kind, "--on", "rehearsal", *WISHES[kind], "--yes"]
    first = bench.json(*wish, env=engine)
    assert json.loads(bench.home.storage("mine").record.read_text())["engine"] == "pulumi"
    assert bench.json(*wish, env=engine)["id"] == first["id"]
    refused = bench.json(*wish, env={"CLOUDGPU_ENGINE": "direct"}, code=2)
    assert "begun by the pulumi engine, not the direct engine" in refused["error"]["message"]
    direct = [*wish[:2], "other", *wish[3:]]
    assert {key for key, value in bench.json(*direct).items() if value} == {
        key for key, value in first.items() if value
    }
    for name in ("mine", "other"):
        bench.run(
            "storage",
            "delete",
            name,
            "--delete-data",
            "--on",
            "rehearsal",
            "--yes",
            env={"CLOUDGPU_PULUMI_COMMAND": engine["CLOUDGPU_PULUMI_COMMAND"]},
        )
    assert bench.left() == {}
    assert not any((bench.home.pulumi / "rehearsal" / "projects").iterdir())


HELD = {"do": "hold", "action": "CreateFleet"}
CUTS = {
    "never sent": {**HELD, "drop": True},
    "sent, and carried out while the next command runs": HELD,
    "carried out, and never answered": {**HELD, "phase": "after_effect", "drop": True},
}


def kill_at_the_launch(bench, engine, rule):
    """SIGKILL to the command alone while the gang's launch is held: its CLI and its plugin are left to themselves."""
    client.put_faults(bench.cloud, [rule])
    process = bench.popen("up", "plain", "--yes", env=engine)
    bench.until_held(process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    client.put_faults(bench.cloud, [])
    client.release(bench.cloud)


def test_killed_in_the_middle_then_down_leaves_nothing(bench, engine):
    bench.recipe()
    for case, rule in CUTS.items():
        kill_at_the_launch(bench, engine, rule)
        bench.run("down", "plain", env=engine)
        time.sleep(1.0)  # whoever outlived the kill would make something now
        assert bench.left() == {}, case


def test_killed_in_the_middle_then_up_goes_on(bench, engine):
    bench.recipe()
    for case, rule in CUTS.items():
        kill_at_the_launch(bench, engine, rule)
        up = bench.json("up", "plain", "--yes", env=engine)
        assert len(up["nodes"]) == 2, case
        assert len(client.census(bench.cloud)["instances"]) == 2, case
        bench.run("down", "plain", env=engine)
        assert bench.left() == {}, case


def running_cli(bench) -> int:
    (note,) = bench.home.pulumi.glob("rehearsal/projects/*/running")
    return int(json.loads(note.read_text())["pid"])


def plugin_of(cli: int) -> int:
    """The child of the CLI that is our plugin."""
    for path in Path("/proc").glob("[0-9]*"):
        parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
        if int(parent) == cli and b"cloudgpu.provision.plugin" in (path / "cmdline").read_bytes():
            return int(path.name)
    raise AssertionError(cli)


@pytest.mark.parametrize("victim", ["the CLI", "the plugin"])
def test_when_the_cli_or_its_plugin_is_killed_up_fails_and_leaves_nothing(bench, engine, victim):
    bench.recipe()
    client.put_faults(bench.cloud, [CUTS["carried out, and never answered"]])
    process = bench.popen("up", "plain", "--yes", env=engine)
    bench.until_held(process)
    cli = running_cli(bench)
    os.kill(cli if victim == "the CLI" else plugin_of(cli), signal.SIGKILL)
    client.put_faults(bench.cloud, [])
    client.release(bench.cloud)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 8, out + err
    assert bench.left() == {}
    assert not bench.home.cluster("plain").record.exists()
