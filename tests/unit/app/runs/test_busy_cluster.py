"""`train` on a cluster on which another run is in progress: it is refused, waits or shares the GPUs."""

import pytest

from cloudgpu.errors import BusyError, RemoteCommandError


@pytest.fixture
def lab(workspace, make, gang):
    """A running cluster, on which the run `other-1` of another machine is in progress."""
    workspace.provisioning.create(make.plan(make.candidate()), "lab")
    gang.busy = ["other-1"]
    return workspace


def sent(workspace, verb):
    hosts = workspace.gang.hosts.values()
    return [call.text for host in hosts for call in host.sent if call.text.endswith(f" {verb}")]


def test_train_on_a_busy_cluster_is_refused_before_files_are_replaced(lab, training):
    with pytest.raises(BusyError) as refused:
        training(cluster="lab")
    assert refused.value.message == "cluster lab is busy: run other-1 is in progress on it"
    assert refused.value.hint == (
        "add --wait to start afterwards, or --share to use the same GPUs at the same time; "
        "to stop it: cloudgpu cancel other-1"
    )
    (run,) = lab.records.runs()
    assert (run.state, run.ranks) == ("failed", {})
    assert lab.records.cluster("lab").state == "up"
    assert sent(lab, "start") == sent(lab, "env") == sent(lab, "probe") == []


def test_waiting_train_starts_when_the_other_run_has_ended(lab, gang, training):
    def end_after_three_minutes():
        if lab.clock.monotonic() > 180:
            gang.busy = []

    gang.before["busy"] = end_after_three_minutes
    assert training(cluster="lab", sharing="wait").record.state == "succeeded"
    waits = [note for note in lab.notes if note.startswith("waiting for run")]
    assert waits == [
        "waiting for run other-1 on cluster lab",
        "waiting for run other-1 on cluster lab, for 1 min so far",
        "waiting for run other-1 on cluster lab, for 2 min so far",
        "waiting for run other-1 on cluster lab, for 3 min so far",
    ]


def test_sharing_train_starts_beside_the_other_run(lab, training):
    assert training(cluster="lab", sharing="share").record.state == "succeeded"
    assert sent(lab, "busy") == []


def test_run_started_during_the_staging_is_noticed_by_the_nodes(lab, gang, training):
    """Two machines whose first check found the cluster idle; the nodes refuse the second start."""
    gang.busy = []
    gang.before["start"] = lambda: gang.busy.append("other-2")
    with pytest.raises(BusyError, match="run other-2 is in progress"):
        training(cluster="lab")


def test_waiting_train_that_lost_the_race_waits_again(lab, gang, training):
    gang.busy = []
    starts = []

    def start():
        starts.append(1)
        gang.busy = ["other-2"] if len(starts) == 1 else []

    gang.before["start"] = start
    gang.before["busy"] = lambda: lab.clock.monotonic() < 20 or gang.busy.clear()
    assert training(cluster="lab", sharing="wait").record.state == "succeeded"
    assert "waiting for run other-2 on cluster lab" in lab.notes


@pytest.mark.parametrize("runs", ["x", None, [1], [["r"]], {"a": 1}], ids=str)
def test_malformed_list_of_runs_is_an_error_not_a_traceback(lab, gang, training, runs):
    gang.busy = runs
    with pytest.raises((RemoteCommandError, BusyError)):
        training(cluster="lab")
