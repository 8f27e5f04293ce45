"""The present version follows, reuses and deletes what version 0.1.0 created.

The released wheel beside this file runs unchanged, with the packages of this environment. It creates a cluster, a
waiting run, storage and a machine image. The present version does the rest: while the rehearsal server of 0.1.0 still
runs, with a new server on its snapshots, and after everything was stopped.
"""

import os
import signal
from pathlib import Path

import pytest

from cloudgpu.rehearsal.server.process import is_alive
from tests.rehearsal.conftest import Workspace
from tests.rehearsal.upgrade.previous import Previous, instance_ids, previewed, previous_version

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(600)]


@pytest.fixture
def previous(cold_workspace: Workspace, tmp_path: Path) -> Previous:
    return previous_version(cold_workspace, tmp_path / "previous")


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


@pytest.mark.parametrize("restarted", [False, True], ids=["server of 0.1.0", "server replaced"])
def test_resources_of_the_previous_version_are_reused_and_deleted(
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


def test_stopped_rehearsal_of_the_previous_version_can_be_emptied(previous: Previous, cold_workspace: Workspace):
    previous.recipe()
    provision(previous)
    previous.run("rehearsal", "stop")
    delete(cold_workspace)
