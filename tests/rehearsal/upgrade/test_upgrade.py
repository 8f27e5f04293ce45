"""What version 0.1.0 started, the present version follows, reuses and deletes.

The released wheel lies beside this file and is run as it is, with the packages of this environment. It makes a cluster,
a run that waits, storage and a machine image; everything after that is the present version's work, once while the
rehearsal server of 0.1.0 still runs, and once on its state after a restart.
"""

import json
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from cloudgpu.version import __version__
from tests.rehearsal.conftest import Workspace

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(600)]

WHEEL = Path(__file__).with_name("cloudgpu-0.1.0-py3-none-any.whl")
PREVIEW = """
import json, sys
from cloudgpu.app.clusters.delete import stack_of
from cloudgpu.cli.context.wiring import wire

wiring = wire()
record = wiring.records.cluster(sys.argv[1])
steps = wiring.cloud(record.target).engine(record).preview(stack_of(wiring.home, record))
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


def previewed(workspace: Workspace, cluster: str) -> list[str]:
    """Operations that the present engine would carry out for the recorded stack."""
    command = [sys.executable, "-c", PREVIEW, cluster]
    done = subprocess.run(command, env=workspace.environment, cwd=workspace.work, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.mark.parametrize("restarted", [False, True], ids=["server of 0.1.0", "server restarted"])
def test_everything_of_the_previous_version_is_followed_reused_and_deleted(
    previous: Previous, cold_workspace: Workspace, restarted: bool
):
    workspace = cold_workspace
    previous.recipe()
    up = previous.json("up", "plain", "--yes")
    previous.json("storage", "create", "shared", "--kind", "efs", "--on", "rehearsal", "--yes")
    previous.json(
        "storage",
        "create",
        "scratch",
        "--kind",
        "lustre",
        "--size",
        "1200",
        "--zone",
        "us-east-1c",
        "--on",
        "rehearsal",
        "--yes",
    )
    previous.json("image", "bake", "plain", "--name", "base", "--yes")
    run = previous.json("train", "plain", "--yes", "--cluster", "plain", "--detach", "--set", "wait_for=go")
    if restarted:
        workspace.run("rehearsal", "stop")
        workspace.run("rehearsal", "start")

    status = workspace.json("status", "--refresh")
    assert [(row["cluster"], row["state"]) for row in status["clusters"]] == [("plain", "up")]
    assert [row["name"] for row in workspace.json("storage", "list", "--on", "rehearsal")["storage"]] == [
        "scratch",
        "shared",
    ]
    assert [row["name"] for row in workspace.json("image", "list", "--on", "rehearsal")["images"]] == ["base"]

    assert previewed(workspace, "plain") == ["same"]
    again = workspace.json("up", "plain", "--yes")
    assert again["instances"] == up["instances"]
    workspace.json("extend", "plain", "--by", "30m", "--yes")

    work = f".cloudgpu/runs/{run['run_id']}/work/go"
    workspace.run("exec", "plain", "--", "touch", work)
    outcome = workspace.json("attach", run["run_id"])
    assert outcome["state"] == "succeeded"
    assert "[rank 3] epoch=3" in workspace.run("logs", run["run_id"]).stdout
    assert workspace.json("train", "plain", "--yes", "--cluster", "plain")["state"] == "succeeded"

    workspace.run("down", "plain")
    for name in ("shared", "scratch"):
        workspace.run("storage", "delete", name, "--yes")
    workspace.run("image", "delete", "base", "--yes")
    assert workspace.left() == {}
    bill = workspace.json("cost", "--all")
    assert bill["rows"]
    assert not [row for row in bill["rows"] if row["state"] == "open"]
