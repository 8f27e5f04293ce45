"""Ctrl-C while nodes are being launched, and while a run has outputs that are not downloaded yet."""

import json
import signal

import pytest

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal


LIMIT_S = 120

WRITES_THEN_HANGS = """
    import os, pathlib, time

    rank = os.environ["RANK"]
    if rank == "0":
        pathlib.Path(os.environ["CLOUDGPU_OUTPUTS"], "metrics.json").write_text("{}")
    print(f"rank {rank} has written", flush=True)
    time.sleep(600)
"""


def interrupted_at(workspace, action, *args, phase="before"):
    """Send Ctrl-C while the endpoint holds a call, release the call, and return the command's output."""
    client.put_faults(workspace.cloud, [{"action": action, "do": "hold", "phase": phase, "times": 1}])
    process = workspace.popen(*args)
    workspace.until_held(process)
    process.send_signal(signal.SIGINT)
    client.put_faults(workspace.cloud, [])
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, out + err
    assert "Traceback" not in err
    return out, err


@pytest.mark.parametrize(("action", "phase"), [("CreateSecurityGroup", "before"), ("CreateFleet", "after_effect")])
def test_ctrl_c_during_up_reports_the_incomplete_cluster(workspace, action, phase):
    workspace.recipe()
    out, _ = interrupted_at(workspace, action, "up", "plain", "--yes", phase=phase)
    assert "cluster plain may be incomplete; its nodes power off at" in out
    assert "delete it now: cloudgpu down plain" in out
    (cluster,) = workspace.json("status")["clusters"]
    assert cluster["state"] == "making"
    ended = workspace.json("down", "plain")
    assert ended["left"] == []
    assert workspace.left() == {}
    assert [row for row in workspace.json("cost")["rows"] if row["open_entries"]] == []


def test_interrupted_up_resumes_and_completes_the_cluster(workspace):
    workspace.recipe()
    out, _ = interrupted_at(workspace, "CreateFleet", "up", "plain", "--yes", "--json", phase="after_effect")
    told = json.loads(out)
    assert told["error"]["type"] == "Interrupted"
    assert (told["cluster"], len(told["left"])) == ("plain", 1)
    assert workspace.json("up", "plain", "--yes")["made"]
    assert len(client.nodes(workspace.cloud)) == 2
    workspace.run("down", "plain")
    assert workspace.left() == {}


def test_ctrl_c_during_up_with_on_interrupt_end_deletes_the_cluster(workspace):
    workspace.recipe()
    args = ("up", "plain", "--yes", "--on-interrupt", "end")
    out, _ = interrupted_at(workspace, "CreateFleet", *args, phase="after_effect")
    assert "cluster plain is deleted" in out
    assert workspace.left() == {}
    assert workspace.json("status")["clusters"] == []


def test_ctrl_c_during_train_launch_reports_the_incomplete_cluster(workspace):
    workspace.recipe()
    out, _ = interrupted_at(workspace, "CreateFleet", "train", "plain", "--yes", "--json", phase="after_effect")
    told = json.loads(out)
    assert (told["state"], told["interrupted"]) == ("interrupted", True)
    assert "may be incomplete" in told["left"][0]
    assert workspace.json("status")["clusters"][0]["cluster"] == told["cluster"]
    workspace.run("down", "--yes")
    assert workspace.left() == {}


def test_ctrl_c_during_train_launch_with_end_deletes_the_cluster(workspace):
    workspace.recipe()
    args = ("train", "plain", "--yes", "--on-interrupt", "end", "--json")
    out, _ = interrupted_at(workspace, "CreateFleet", *args, phase="after_effect")
    told = json.loads(out)
    assert (told["state"], told["left"]) == ("cancelled", [])
    assert workspace.left() == {}
    assert workspace.json("status", "--all")["runs"][0]["state"] == "cancelled"


def test_outputs_are_downloaded_before_an_interrupted_run_is_deleted(workspace):
    workspace.recipe(script=WRITES_THEN_HANGS)
    process = workspace.popen("train", "plain", "--yes", "--on-interrupt", "end", "--json")
    for line in process.stderr:
        if "[rank 0] rank 0 has written" in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, out + err
    told = json.loads(out)
    assert told["state"] == "cancelled"
    assert told["outputs"]["files"] == ["outputs/metrics.json"]
    assert (workspace.home.run(told["run_id"]).outputs / "outputs/metrics.json").read_text() == "{}"
    assert "[rank 0] rank 0 has written" in workspace.run("logs", told["run_id"]).stdout
    assert workspace.left() == {}
