"""SIGKILL of `rehearsal stop` around its steps: the next one leaves no process, and no cost that goes on."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from cloudgpu.ledger.store import open_ledger
from cloudgpu.rehearsal.layout import RehearsalFiles
from cloudgpu.rehearsal.nodes.host_client import NodeHostClient
from cloudgpu.rehearsal.server import process
from tests.rehearsal.kills.conftest import Sandbox, json_process

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(900)]

STOP = ("rehearsal", "stop")
DEFAULT = ("step stop#1 effect", "step record#1 before")
"""Points that run without `--full`: the server is still stopping, and the ledger still counts the nodes."""


@pytest.fixture(scope="module")
def real_sandbox(tmp_path_factory, make_workspace):
    """A sandbox with real node processes."""
    with ExitStack() as stack:
        workspace = stack.enter_context(make_workspace(tmp_path_factory.mktemp("stopped")))
        workspace.recipe(resources="{instance_type: p3dn.24xlarge, nodes: 1, regions: [us-east-1]}")
        yield Sandbox(workspace, stack.enter_context(json_process("command_server.py")))


def processes(sandbox):
    """Return the server, the node host and the nodes' processes: those whose mounts or variables name the home."""
    root = os.fsencode(sandbox.home.root)
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if root in (folder / "mountinfo").read_bytes() or root in (folder / "environ").read_bytes():
                found.append((int(folder.name), (folder / "cmdline").read_bytes()))
        except OSError:
            continue
    return found


def ends_of_nodes(sandbox):
    """Return the end of the nodes' costs in each open row of the ledger."""
    with open_ledger(f"sqlite:///{sandbox.home.ledger_db}") as ledger:
        return [row.parts["nodes"].at if "nodes" in row.parts else None for row in ledger.entries(state="open")]


def kill_stop_then_repeat(sandbox, point):
    sandbox.workspace.run("rehearsal", "start")  # forked, which is faster than the start by `up`
    sandbox.run("up", "plain", "--yes", "--no-wait")
    assert processes(sandbox)
    assert sandbox.kill_at(point, *STOP), point
    sandbox.run(*STOP)
    files = RehearsalFiles.of(sandbox.home)
    assert process.running_server_pid(files) is None, point
    assert not NodeHostClient(files.nodes).running(), point
    assert processes(sandbox) == [], point
    assert None not in ends_of_nodes(sandbox), point
    (cluster,) = sandbox.json("status")["clusters"]
    assert (cluster["state"], float(cluster["hourly_usd"])) == ("terminated", 0), point
    sandbox.run("down", "plain")
    sandbox.check_empty(point)


@pytest.mark.parametrize("point", DEFAULT)
def test_stop_resumes_after_a_kill(real_sandbox, point):
    kill_stop_then_repeat(real_sandbox, point)


@pytest.mark.full
def test_stop_resumes_after_a_kill_at_any_step(real_sandbox):
    real_sandbox.workspace.run("rehearsal", "start")
    real_sandbox.run("up", "plain", "--yes", "--no-wait")
    points = real_sandbox.kill_points(*STOP)
    real_sandbox.run("down", "plain")
    for point in points.steps + points.files:
        kill_stop_then_repeat(real_sandbox, point)
