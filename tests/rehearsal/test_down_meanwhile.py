"""`down` of a cluster on which another process's `train` is at work: the cluster ends, and `train` says so."""

import json

import pytest

from cloudgpu.ledger.store import open_ledger

pytestmark = pytest.mark.rehearsal

FAILED = 5


def test_down_ends_the_cluster_of_a_run_that_another_process_follows(workspace, until):
    workspace.recipe()
    training = workspace.popen("train", "plain", "--yes", "--json", "--set", "params.hang=yes")

    def running():
        assert training.poll() is None, training.communicate()
        return [run for one in workspace.json("status")["clusters"] for run in one["runs"] if run["state"] == "running"]

    until(running)
    (cluster,) = workspace.json("status")["clusters"]
    ended = workspace.json("down", cluster["cluster"])
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
        ledger.dispose()
    assert (entry.state, run.state) == ("closed", "cancelled")
    assert outcome["cost"]["usd"] == ended["cost"]["usd"]
    (recorded,) = workspace.json("status", "--all")["runs"]
    assert (recorded["state"], recorded["run_id"]) == ("cancelled", outcome["run_id"])
    assert workspace.left() == {}
    assert workspace.json("status")["clusters"] == []
