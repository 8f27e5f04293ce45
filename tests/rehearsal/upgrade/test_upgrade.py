"""What version 0.1.0 started, the present version follows, reuses and deletes.

The released wheel lies beside this file and is run as it is, with the packages of this environment. It makes a cluster,
a run that waits, storage and a machine image; everything after that is the present version's work, once while the
rehearsal server of 0.1.0 still runs, once with a new server on its snapshots, and once after everything was stopped.
"""

import json
import os
import signal
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from cloudgpu.rehearsal.server.process import is_alive
from cloudgpu.version import __version__
from tests.rehearsal.conftest import Workspace

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(600)]

WHEEL = Path(__file__).with_name("cloudgpu-0.1.0-py3-none-any.whl")
PREVIEW = """
import json, sys
from cloudgpu.backends.aws.clusters.delete import stack_of
from cloudgpu.cli.context import command_context

context = command_context()
record = context.records.cluster(sys.argv[1])
steps = context.backend(record.target).cloud.engine(record).preview(stack_of(context.home, record))
print(json.dumps(sorted({step.operation for step in steps})))
"""


@dataclass(frozen=True)
class Previous(Workspace):
    """The same home, and the commands of version 0.1.0."""

    package: Path = Path()

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "PYTHONPATH": str(self.package)}


@pytest.fixture
def previous(cold_workspace: Workspace, tmp_path: Path) -> Previous:
    package = tmp_path / "previous"
    with zipfile.ZipFile(WHEEL) as wheel:
        wheel.extractall(package)
    made = Previous(cold_workspace.home, cold_workspace.work, package=package)
    assert made.run("--version").stdout.split() == ["cloudgpu", "0.1.0"]
    assert cold_workspace.run("--version").stdout.split() == ["cloudgpu", __version__]
    return made


def provision(previous: Previous) -> None:
    """Create a cluster, two kinds of storage and a machine image."""
    create = ("storage", "create", "--on", "rehearsal", "--yes")
    previous.run("up", "plain", "--yes")
    previous.run(*create, "shared", "--kind", "efs")
    previous.run(*create, "scratch", "--kind", "lustre", "--size", "1200", "--zone", "us-east-1c")
    previous.run("image", "bake", "plain", "--name", "base", "--yes")


def delete(workspace: Workspace) -> None:
    """Delete all of it; nothing may be left in the cloud or open in the ledger."""
    workspace.run("down", "plain")
    for name in ("shared", "scratch"):
        workspace.run("storage", "delete", name, "--delete-data", "--yes")
    workspace.run("image", "delete", "base", "--yes")
    assert workspace.left() == {}
    bill = workspace.json("cost")["rows"]
    assert sum(float(row["usd"]) for row in bill) > 0
    assert {row["open_entries"] for row in bill} == {0}


def instance_ids(workspace: Workspace) -> list[str]:
    """Instances of the cluster `plain`, as the home has them on record."""
    inventory = json.loads(workspace.home.cluster("plain").inventory.read_text())
    return [node["instance_id"] for node in inventory["nodes"]]


def previewed(workspace: Workspace, cluster: str) -> list[str]:
    """Operations that the present engine would carry out for the recorded stack."""
    command = [sys.executable, "-c", PREVIEW, cluster]
    done = subprocess.run(command, env=workspace.environment, cwd=workspace.work, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.mark.parametrize("restarted", [False, True], ids=["server of 0.1.0", "server replaced"])
def test_everything_of_the_previous_version_is_followed_reused_and_deleted(
    previous: Previous, cold_workspace: Workspace, until, restarted: bool
):
    workspace = cold_workspace
    previous.recipe()
    provision(previous)
    nodes = instance_ids(previous)
    run = previous.json("train", "plain", "--yes", "--cluster", "plain", "--detach", "--set", "wait_for=go")
    if restarted:
        # The nodes and their host stay; the next command starts a server, which reads the snapshots of 0.1.0.
        server = workspace.cloud.pid
        os.kill(server, signal.SIGTERM)
        until(lambda: not is_alive(server))

    status = workspace.json("status", "--refresh")
    assert [(row["cluster"], row["state"]) for row in status["clusters"]] == [("plain", "up")]
    assert [row["name"] for row in workspace.json("storage", "list", "--on", "rehearsal")["storage"]] == [
        "scratch",
        "shared",
    ]
    assert [row["name"] for row in workspace.json("image", "list", "--on", "rehearsal")["images"]] == ["base"]

    assert previewed(workspace, "plain") == ["same"]
    workspace.run("up", "plain", "--yes")
    assert instance_ids(workspace) == nodes
    workspace.run("extend", "plain", "--by", "30m")

    work = f".cloudgpu/runs/{run['run_id']}/work/go"
    workspace.run("exec", "plain", "--", "touch", work)
    outcome = workspace.json("attach", run["run_id"])
    assert outcome["state"] == "succeeded"
    assert "[rank 3] epoch=3" in workspace.run("logs", run["run_id"]).stdout
    assert workspace.json("train", "plain", "--yes", "--cluster", "plain")["state"] == "succeeded"

    delete(workspace)


def test_a_stopped_rehearsal_cloud_of_the_previous_version_is_started_and_emptied(
    previous: Previous, cold_workspace: Workspace
):
    previous.recipe()
    provision(previous)
    previous.run("rehearsal", "stop")
    delete(cold_workspace)
