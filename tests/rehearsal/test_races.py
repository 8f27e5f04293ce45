"""Concurrent commands: one wins and the other reports it; separate clusters and runs do not interfere."""

import re

import pytest

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal

LIMIT_S = 120


def ended(process):
    out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, out, err


def test_second_command_reports_the_process_that_holds_the_lease(workspace):
    workspace.recipe()
    client.put_faults(workspace.cloud, [{"action": "CreateFleet", "do": "hold", "times": 1}])
    first = workspace.popen("up", "plain", "--yes", "--owner", "ada")
    workspace.until_held(first)
    for args in (("up", "plain", "--yes", "--owner", "bob"), ("down", "plain", "--yes")):
        second = workspace.run(*args, code=11)
        assert re.search(rf"ada \(process {first.pid} on .+\) .* plain", second.stderr), second.stderr
        assert "hint:" in second.stderr
    client.release(workspace.cloud)
    code, out, err = ended(first)
    assert code == 0, out + err
    assert len(client.nodes(workspace.cloud)) == 2
    workspace.run("down", "plain", "--yes")
    assert workspace.left() == {}


def test_four_concurrent_ups_create_a_single_cluster(workspace):
    workspace.recipe()
    ups = [workspace.popen("up", "plain", "--yes", "--json") for _ in range(4)]
    codes = [ended(up) for up in ups]
    assert {code for code, _, _ in codes} <= {0, 11}, codes
    assert sum('"made": true' in out for _, out, _ in codes) == 1, codes
    assert len(client.nodes(workspace.cloud)) == 2
    downs = [ended(down) for down in [workspace.popen("down", "plain", "--json") for _ in range(3)]]
    assert {code for code, _, _ in downs} <= {0, 11}, downs
    workspace.run("down", "plain")
    assert workspace.left() == {}
    assert workspace.json("status")["clusters"] == []


def test_lease_of_a_dead_process_does_not_block_up(workspace):
    workspace.recipe()
    client.put_faults(workspace.cloud, [{"action": "CreateFleet", "do": "hold", "times": 1}])
    first = workspace.popen("up", "plain", "--yes")
    workspace.until_held(first)
    first.kill()
    first.communicate()
    client.release(workspace.cloud)
    assert workspace.json("up", "plain", "--yes")["made"]
    assert len(client.nodes(workspace.cloud)) == 2
    workspace.run("down", "plain")
    assert workspace.left() == {}


def test_concurrent_trains_get_separate_clusters_and_bills(workspace):
    workspace.recipe()
    both = [ended(train) for train in [workspace.popen("train", "plain", "--yes", "--json") for _ in range(2)]]
    assert [code for code, _, _ in both] == [0, 0], both
    assert workspace.left() == {}
    assert len(workspace.json("cost")["rows"]) == 2


def test_concurrent_runs_share_a_running_cluster(workspace):
    """With `--share`, each run has its own ports, work directory, logs and outputs."""
    workspace.recipe()
    workspace.run("up", "plain", "--yes")
    runs = [workspace.popen("train", "plain", "--yes", "--json", "--cluster", "plain", "--share") for _ in range(2)]
    both = [ended(run) for run in runs]
    assert [code for code, _, _ in both] == [0, 0], both
    ids = [run["run_id"] for run in workspace.json("status", "--all")["runs"]]
    assert len(set(ids)) == 2
    for run_id in ids:
        logs = workspace.run("logs", run_id).stdout
        assert logs.count("epoch=3") == 4
        assert (workspace.home.run(run_id).outputs / "outputs/metrics.json").exists()
    assert len(client.nodes(workspace.cloud)) == 2
    workspace.run("down", "plain")
    assert workspace.left() == {}


def test_run_on_a_busy_cluster_is_refused_or_waits(workspace):
    workspace.recipe()
    workspace.run("up", "plain", "--yes")
    train = ("train", "plain", "--yes", "--cluster", "plain")
    first = workspace.json(*train, "--detach", "--set", "wait_for=go")["run_id"]
    # The nodes know their runs, even if this state home has lost the record.
    record = workspace.home.run(first).record
    record.rename(record.with_suffix(".lost"))
    refused = workspace.json(*train, code=11)["error"]
    assert refused["message"] == f"cluster plain is busy: run {first} is in progress on it"
    record.with_suffix(".lost").rename(record)
    second = workspace.popen(*train, "--wait")
    lines = iter(second.stdout.readline, "")
    assert any(f"waiting for run {first} on cluster plain" in line for line in lines)
    workspace.run("exec", "plain", "--", "touch", f".cloudgpu/runs/{first}/work/go")
    code, out, err = ended(second)
    assert code == 0, (out, err)
    assert workspace.json("attach", first)["state"] == "succeeded"
    workspace.run("down", "plain")
    assert workspace.left() == {}


def test_clusters_of_separate_homes_do_not_affect_each_other(workspace, make_workspace, tmp_path):
    (tmp_path / "other").mkdir()
    with make_workspace(tmp_path / "other") as other:
        for one in (workspace, other):
            one.recipe()
        ups = [one.popen("up", "plain", "--yes") for one in (workspace, other)]
        assert [ended(up)[0] for up in ups] == [0, 0]
        other.run("down", "plain")
        assert other.left() == {}
        assert len(client.nodes(workspace.cloud)) == 2
        workspace.run("down", "plain")
        assert workspace.left() == {}
    assert {path.name for path in workspace.home.clusters.glob("*/*")} <= {"lease.guard"}
