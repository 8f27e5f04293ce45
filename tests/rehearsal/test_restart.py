"""A rehearsal cloud that is stopped and started again works as before."""

import re
import signal
from datetime import UTC, datetime, timedelta

import pytest

from cloudgpu.app.cluster_status import list_cluster_statuses
from cloudgpu.ledger.store import open_ledger
from cloudgpu.rehearsal import client
from cloudgpu.rehearsal.layout import RehearsalFiles, ended_instances
from cloudgpu.state.record_store import RecordStore

pytestmark = pytest.mark.rehearsal


def test_nodes_can_write_the_uv_cache_after_a_restart(workspace):
    """Regression: from the second start on an existing cache was mounted read-only, so uv failed and pip was used."""
    workspace.recipe()
    for _ in range(2):
        workspace.run("up", "plain", "--yes")
        workspace.run("exec", "plain", "--", 'mkdir -p "$UV_CACHE_DIR" && touch "$UV_CACHE_DIR/probe"')
        workspace.run("down", "plain")
        workspace.run("rehearsal", "stop")


def test_clusters_of_a_stopped_cloud_are_not_shown_as_running_or_as_interrupted(workspace):
    workspace.recipe(resources="{instance_type: p3dn.24xlarge, nodes: 2, regions: [us-east-1], market: spot}")
    run = workspace.json("train", "plain", "--yes", "--detach", "--set", "hang=yes")
    cluster = run["cluster"]
    assert workspace.json("status")["clusters"][0]["stopped_at"] is None
    workspace.run("rehearsal", "stop")
    for refresh in ([], ["--refresh"], []):  # a query starts the cloud again, without the nodes
        shown = " ".join(workspace.run("status", *refresh).stdout.split())
        assert f"{cluster} terminated (simulated)" in shown
        assert re.search(r"the rehearsal cloud was stopped at [0-9: -]+ UTC, and its nodes ended with it", shown), shown
        assert "interrupted" not in shown
    attached = workspace.run("attach", run["run_id"], code=5)
    reason = " ".join((attached.stdout + attached.stderr).split())
    assert "terminated, which ended with the rehearsal cloud when it was stopped" in reason
    assert "spot interruption" not in reason
    workspace.run("up", "plain", "--yes", "--no-wait")
    (status,) = workspace.json("status")["clusters"]
    assert (status["state"], status["stopped_at"]) == ("up", None)
    workspace.run("down", "plain", "--yes")


def ledger_of(workspace):
    return open_ledger(f"sqlite:///{workspace.home.ledger_db}")


def costs_shown(workspace, ahead, *, from_ledger=True):
    """Return the cost of each cluster as `status` shows it this much later, and the total of `cost`."""
    later = datetime.now(UTC) + ahead
    records, ended = RecordStore(workspace.home), ended_instances(workspace.home)
    with ledger_of(workspace) as ledger:
        clusters = list_cluster_statuses(records, later, ledger if from_ledger else None, ended)
        return [cluster.spent_usd for cluster in clusters], ledger.report(by="cluster", now=later).simulated_usd


def test_cost_ends_and_runs_are_lost_when_the_cloud_is_stopped(workspace):
    workspace.recipe()
    run = workspace.json("train", "plain", "--yes", "--detach", "--set", "hang=yes", "--cluster", "lab")
    assert workspace.json("status")["clusters"][0]["runs"] == [{"run_id": run["run_id"], "state": "running"}]
    workspace.run("rehearsal", "stop")
    (cluster,) = workspace.json("status")["clusters"]
    assert (cluster["state"], float(cluster["hourly_usd"])) == ("terminated", 0)
    assert cluster["runs"] == [{"run_id": run["run_id"], "state": "lost"}]
    everything = workspace.json("status", "--all")["runs"]
    assert [(row["state"], row["ended_at"]) for row in everything] == [("lost", None)]
    shown = workspace.run("status", "--all").stdout
    assert f"run {run['run_id']}  lost, started" in shown
    assert re.search(rf"^{run['run_id']}\s+lost\s", shown, re.MULTILINE), shown
    soon, later = costs_shown(workspace, timedelta()), costs_shown(workspace, timedelta(hours=9))
    assert soon == later
    assert soon[0] == [soon[1].quantize(soon[0][0])]
    without = [costs_shown(workspace, ahead, from_ledger=False)[0] for ahead in (timedelta(), timedelta(hours=9))]
    assert without[0] == without[1]
    total = soon[1]
    workspace.run("rehearsal", "start")
    workspace.run("rehearsal", "stop")  # a second stop, with no nodes left, changes nothing
    assert workspace.json("status")["clusters"][0]["stopped_at"] == cluster["stopped_at"]
    (swept,) = workspace.json("sweep")["clusters"]
    assert swept["spent_usd"] == cluster["spent_usd"]
    workspace.run("down", "lab", "--yes")
    with ledger_of(workspace) as ledger:
        assert ledger.report(by="cluster", now=datetime.now(UTC)).simulated_usd == total


def shown(workspace, name):
    """Return a cluster as `status` shows it."""
    return next(row for row in workspace.json("status")["clusters"] if row["cluster"] == name)


def kill_up(workspace, action):
    """Run `up`, and kill it while it waits for the response to a call; return the cluster as `status` shows it."""
    client.put_faults(workspace.cloud, [{"id": "wait", "action": action, "do": "hold"}])
    up = workspace.popen("up", "plain", "--yes")
    workspace.until_held(up)
    up.send_signal(signal.SIGKILL)
    up.communicate()
    cluster = shown(workspace, "plain")
    assert (cluster["state"], cluster["stopped_at"]) == ("making", None)
    return cluster


def test_up_that_is_resumed_after_a_stop_is_shown_as_running_and_billed(workspace):
    """Regression: the record is older than the stop, so the cluster was shown as terminated although it was running."""
    workspace.recipe()
    workspace.run("up", "plain", "--yes", "--no-wait", "--name", "other")
    assert kill_up(workspace, "CreateLaunchTemplate")["instances"] == []
    workspace.run("rehearsal", "stop")
    assert shown(workspace, "other")["state"] == "terminated"
    cluster = shown(workspace, "plain")
    assert (cluster["state"], cluster["stopped_at"]) == ("making", None)  # no instance was recorded that may have ended
    workspace.run("rehearsal", "start")
    launched = {node["instance_id"] for node in workspace.json("up", "plain", "--yes")["nodes"]}
    cluster = shown(workspace, "plain")
    assert (cluster["state"], cluster["stopped_at"]) == ("up", None)
    assert {row["id"] for row in cluster["instances"] if row["state"] == "running"} == launched
    assert "plain  up  (simulated)" in workspace.run("status").stdout
    hourly = float(cluster["hourly_usd"])
    now, later = costs_shown(workspace, timedelta()), costs_shown(workspace, timedelta(hours=2))
    assert float(later[1] - now[1]) == pytest.approx(2 * hourly, rel=0.01)
    assert float(sum(later[0]) - sum(now[0])) == pytest.approx(2 * hourly, rel=0.01)
    workspace.run("rehearsal", "stop")
    assert shown(workspace, "plain")["state"] == "terminated"
    workspace.run("down", "plain")
    workspace.run("down", "other")
    assert workspace.left() == {}


def test_unfinished_up_whose_nodes_ended_is_shown_as_terminated(workspace):
    workspace.recipe()
    launched = kill_up(workspace, "GetConsoleOutput")["instances"]
    assert len(launched) == 2
    workspace.run("rehearsal", "stop")
    (cluster,) = workspace.json("status")["clusters"]
    assert cluster["state"] == "terminated"
    assert cluster["instances"] == [{"id": row["id"], "state": "terminated"} for row in launched]
    assert costs_shown(workspace, timedelta()) == costs_shown(workspace, timedelta(hours=2))
    workspace.run("down", "plain")
    assert workspace.left() == {}


def test_stop_with_an_unusable_ledger_names_the_command_that_corrects_it(workspace):
    workspace.recipe()
    workspace.run("up", "plain", "--yes", "--no-wait")
    ledger = workspace.home.ledger_db
    kept = ledger.read_bytes()
    ledger.write_bytes(b"rubbish" * 1000)
    warned = " ".join(workspace.run("rehearsal", "stop").stderr.split())
    assert "warning: the rehearsal cloud is stopped, but its ledger rows are not closed: " in warned, warned
    assert warned.endswith("to record later when the nodes ended: cloudgpu rehearsal stop")
    ledger.write_bytes(kept)
    before = costs_shown(workspace, timedelta()), costs_shown(workspace, timedelta(hours=2))
    assert before[0][0] == before[1][0]  # `status` knows when the nodes ended
    assert before[0][1] < before[1][1]
    workspace.run("rehearsal", "stop")
    assert costs_shown(workspace, timedelta()) == costs_shown(workspace, timedelta(hours=2))
    workspace.run("down", "plain")


@pytest.mark.parametrize("content", [b"", b"[]", b'{"format": 99}', b'{"instances": {"i-1": 5}}', None])
def test_status_and_down_work_without_a_readable_list_of_ended_instances(workspace, content):
    workspace.recipe()
    workspace.run("up", "plain", "--yes", "--no-wait")
    workspace.run("rehearsal", "stop")
    mark = RehearsalFiles.of(workspace.home).ended_instances
    mark.unlink()
    mark.mkdir() if content is None else mark.write_bytes(content)
    assert workspace.json("status")["clusters"][0]["state"] == "up"  # as recorded
    assert workspace.json("status", "--refresh")["clusters"][0]["state"] == "terminated"
    workspace.run("down", "plain")
    assert workspace.left() == {}
