"""`down` of a cluster while another process's `train` uses it: the cluster is deleted, and `train` says so."""

import json

import pytest

from cloudgpu.ledger.store import open_ledger

pytestmark = pytest.mark.rehearsal

FAILED = 5


def test_down_cancels_a_run_that_another_process_follows(workspace, until):
    workspace.recipe()
    training = workspace.popen("train", "plain", "--yes", "--json", "--set", "params.hang=yes")

    def running():
        assert training.poll() is None, training.communicate()
        return [run for one in workspace.json("status")["clusters"] for run in one["runs"] if run["state"] == "running"]

    until(running)
    (cluster,) = workspace.json("status")["clusters"]
    assert "is in progress on it" in workspace.run("down", cluster["cluster"], code=14).stderr
    ended = workspace.json("down", cluster["cluster"], "--yes")
    assert {one["id"] for one in cluster["instances"]} == set(ended["instances_ended"])
    out, err = training.communicate(timeout=100)
    assert training.returncode == FAILED, err
    outcome = json.loads(out)
    assert (outcome["state"], outcome["reason"]) == ("cancelled", "its cluster was deleted")
    assert (outcome["unended"], outcome["left"]) == ("", [])
    # One bill, closed once; the record says the same as the ledger; nothing is left anywhere.
    ledger = open_ledger(f"sqlite:///{workspace.home.ledger_db}")
    try:
        (entry,) = ledger.entries()
        (run,) = ledger.runs()
    finally:
        ledger.engine.dispose()
    assert (entry.state, run.state) == ("closed", "cancelled")
    assert outcome["cost"]["usd"] == ended["cost"]["usd"]
    (recorded,) = workspace.json("status", "--all")["runs"]
    assert (recorded["state"], recorded["run_id"]) == ("cancelled", outcome["run_id"])
    assert workspace.left() == {}
    assert workspace.json("status")["clusters"] == []
