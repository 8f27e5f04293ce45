"""Coming back to a run whose nodes are there, gone, or half gone."""

import pytest

from cloudgpu.app.runs.attach import find_run, read_stored_lines
from cloudgpu.errors import StateError, UsageError


def test_attach_after_the_nodes_expired_closes_its_rows_without_a_connection(workspace, gang, training, watching):
    run = training(detach=True).record
    workspace.cloud.alive = dict.fromkeys(workspace.cloud.alive, "terminated")
    workspace.clock.sleep(2 * 3600)
    gang.dialled.clear()
    outcome = watching.attach(run.run_id)
    assert (outcome.record.state, gang.dialled) == ("lost", [])
    assert "2026-11-21 13:00 UTC" in outcome.record.reason
    assert outcome.left == ()
    assert workspace.records.clusters() == []
    assert [run.state for run in workspace.ledger.runs()] == ["lost"]


def test_attach_goes_on_with_the_nodes_that_are_left(workspace, gang, training, watching):
    run = training(detach=True).record
    workspace.cloud.alive["i-us-east-1c-1"] = "terminated"
    gang.tell("failed", node_index=1, reason="lost contact with node 1")
    gang.dialled.clear()
    outcome = watching.attach(run.run_id)
    assert gang.dialled == [["i-us-east-1c-0"]]
    assert (outcome.record.state, outcome.record.reason) == ("failed", "lost contact with node 1")
    assert outcome.notes == ("node 1 (i-us-east-1c-1) is terminated and its data is lost",)
    assert outcome.left == ()


def test_attach_of_a_judged_run_keeps_its_verdict_when_the_nodes_are_gone(workspace, training, watching):
    run = training(detach=True).record
    watching.logs(run.run_id)
    workspace.cloud.alive = dict.fromkeys(workspace.cloud.alive, "terminated")
    assert watching.attach(run.run_id).record.state == "succeeded"


def test_attach_twice_says_that_it_is_over(training, watching):
    run = training(detach=True).record
    watching.attach(run.run_id)
    with pytest.raises(UsageError, match="is not running: succeeded"):
        watching.attach(run.run_id)


def test_logs_of_a_run_without_nodes_says_how_to_close_it(workspace, training, watching):
    run = training(detach=True).record
    workspace.cloud.alive = dict.fromkeys(workspace.cloud.alive, "terminated")
    with pytest.raises(StateError) as caught:
        watching.logs(run.run_id)
    assert f"cloudgpu attach {run.run_id}" in caught.value.hint


def test_cancel_ends_the_run_and_not_the_cluster_and_only_once(workspace, training, watching):
    run = training(detach=True).record
    cancelled = watching.cancel(run.run_id)
    assert (cancelled.state, cancelled.ended_at) == ("cancelled", workspace.clock.now())
    assert workspace.records.cluster(run.cluster).state == "up"
    with pytest.raises(UsageError, match="is not running: cancelled"):
        watching.cancel(run.run_id)


def test_cancel_gives_the_time_that_the_recipe_gives_for_a_checkpoint(gang, training, watching):
    checkpoint = {"path": "ckpt", "signal": "SIGUSR1", "grace": "90s"}
    run = training(detach=True, sections={"checkpoint": checkpoint}).record
    watching.cancel(run.run_id)
    (stop,) = [sent for sent in gang.hosts["i-us-east-1c-0"].sent if " stop" in sent.wire]
    assert b'"SIGUSR1"' in stop.stdin
    assert b'"grace_s": 90' in stop.stdin


def test_attach_from_another_address_opens_the_port_first(workspace, gang, training, watching):
    run = training(detach=True).record
    workspace.cloud.cidr = "198.51.100.7/32"
    watching.attach(run.run_id)
    assert any("opening port 22 to 198.51.100.7/32" in note for note in workspace.notes)


def test_a_run_is_found_by_its_id_only(workspace, training):
    run = training().record
    assert find_run(workspace.records, "") == find_run(workspace.records, run.run_id)
    for name in ("../runs/" + run.run_id, "nothing"):
        with pytest.raises(UsageError, match="does not exist"):
            find_run(workspace.records, name)


def test_stored_lines_are_those_of_one_rank(workspace, training):
    run = training().record
    assert list(read_stored_lines(workspace.home, run, 0)) == [(0, "accuracy=0.97")]
    with pytest.raises(UsageError, match="its ranks are 0 to 3"):
        list(read_stored_lines(workspace.home, run, 4))
