"""Faults of the cloud during a command: throttling, denied calls, no capacity, dead servers, lost nodes."""

import os
import re
import shlex
import signal
import time

import pytest

from cloudgpu.rehearsal import client
from cloudgpu.rehearsal.layout import RehearsalFiles
from cloudgpu.rehearsal.nodes.host_client import NodeHostClient

pytestmark = pytest.mark.rehearsal

THROTTLED = {"do": "error", "code": "RequestLimitExceeded", "message": "Request limit exceeded.", "http": 503}
DENIED = {"do": "error", "code": "UnauthorizedOperation", "message": "You are not authorized", "http": 403}


@pytest.fixture(scope="module")
def one_cloud(make_workspace, tmp_path_factory):
    with make_workspace(tmp_path_factory.mktemp("one")) as made:
        yield made


@pytest.fixture
def shared(one_cloud):
    """Share a cloud between tests; check that each test leaves it empty."""
    yield one_cloud
    client.put_faults(one_cloud.cloud, [])
    client.put_quotas(one_cloud.cloud, {})
    assert one_cloud.left() == {}
    assert one_cloud.json("status")["clusters"] == []


def one_gang_then_none(workspace):
    assert len(client.nodes(workspace.cloud)) == 2
    client.put_faults(workspace.cloud, [])
    workspace.run("down", "plain")
    assert workspace.left() == {}


def test_up_succeeds_despite_throttling(shared):
    shared.recipe()
    rules = [{**THROTTLED, "times": 3, "action": "CreateFleet"}, {**THROTTLED, "times": 2, "action": "Describe*"}]
    client.put_faults(shared.cloud, [*rules, {**THROTTLED, "times": 2, "mutating": True}])
    shared.run("up", "plain", "--yes")
    assert [rule["fired"] for rule in client.faults(shared.cloud)["rules"]] == [3, 2, 2]
    one_gang_then_none(shared)


def test_launch_throttled_after_its_effect_is_not_repeated(shared):
    """The retry has the same token, so it returns the nodes of the first call."""
    shared.recipe()
    client.put_faults(shared.cloud, [{**THROTTLED, "action": "CreateFleet", "phase": "after_effect", "times": 2}])
    shared.run("up", "plain", "--yes")
    assert client.faults(shared.cloud)["rules"][0]["fired"] == 2
    one_gang_then_none(shared)


def test_launch_without_a_response_is_found_and_deleted(shared):
    shared.recipe()
    client.put_faults(shared.cloud, [{"do": "drop", "action": "CreateFleet", "phase": "after_effect", "times": 1}])
    done = shared.run("up", "plain", "--yes", code=8)
    assert "launching the nodes: no response" in done.stderr
    assert "hint:" in done.stderr
    assert shared.left() == {}
    assert shared.json("status")["clusters"] == []


def test_creations_with_lost_responses_are_not_repeated(shared):
    shared.recipe()
    lost = {"do": "drop", "mutating": True, "phase": "after_effect", "times": 1}
    actions = ("ImportKeyPair", "CreatePlacementGroup", "CreateRole", "CreateSecurityGroup", "CreateLaunchTemplate")
    client.put_faults(shared.cloud, [{**lost, "action": action} for action in actions])
    shared.run("up", "plain", "--yes")
    assert [rule["fired"] for rule in client.faults(shared.cloud)["rules"]] == [1] * len(actions)
    one_gang_then_none(shared)


REFUSED = {
    "GetCallerIdentity": "reading the caller's identity",
    "CreateRole": "creating role",
    "CreateFleet": "launching the nodes",
}


@pytest.mark.parametrize("action", REFUSED)
def test_denied_permission_fails_immediately_and_leaves_nothing(shared, action):
    shared.recipe()
    client.put_faults(shared.cloud, [{**DENIED, "action": action}])
    done = shared.run("up", "plain", "--yes", code=8)
    # The nodes' role and that of their schedule are made side by side: the second may be asked for by then, and no
    # call is made again.
    assert client.faults(shared.cloud)["rules"][0]["fired"] in ({1, 2} if action == "CreateRole" else {1})
    assert f"error: {REFUSED[action]}" in done.stderr
    assert "hint:" in done.stderr
    client.put_faults(shared.cloud, [])
    assert shared.left() == {}
    assert shared.json("status")["clusters"] == []


def test_retired_type_error_suggests_a_working_replacement(shared):
    client.put_faults(shared.cloud, [])
    shared.recipe(resources="{instance_type: p3.16xlarge, nodes: 2, regions: [us-east-1]}")
    done = shared.run("up", "plain", "--yes", code=7)
    assert "p3.16xlarge" in done.stderr
    fix = re.search(r"hint: (--set .*)", done.stderr)
    assert fix, done.stderr
    shared.run("plan", "plain", code=7)
    shared.run("plan", "plain", *shlex.split(fix[1]))
    assert client.faults(shared.cloud)["mutating_calls"] == 0


def full(**more):
    """Return a quota fault that the plan cannot foresee, as if other users launched in the meantime."""
    return {"action": "CreateFleet", "code": "VcpuLimitExceeded", "http": 400, **more}


def test_quota_error_in_every_zone_is_reported(shared):
    shared.recipe()
    client.put_faults(shared.cloud, [full()])
    done = shared.run("up", "plain", "--yes", code=4)
    assert "VcpuLimitExceeded" in done.stderr
    assert shared.left() == {}
    assert shared.json("status")["clusters"] == []


def test_quota_error_in_a_region_leads_to_the_next_region(shared):
    shared.recipe(resources="{instance_type: p3dn.24xlarge, nodes: 2, regions: [us-east-1, us-west-2]}")
    client.put_faults(shared.cloud, [full(match={"region": "us-east-1"})])
    up = shared.json("up", "plain", "--yes")
    assert {node.region for node in client.nodes(shared.cloud)} == {"us-west-2"}
    assert sum("VcpuLimitExceeded" in line for line in up["tried"]) == 1  # the region's second zone is not asked
    regions = {row["region"] for kind, rows in shared.left().items() for row in rows if kind not in GLOBAL}
    assert regions == {"us-west-2"}
    one_gang_then_none(shared)


GLOBAL = ("roles", "instance_profiles")


@pytest.mark.parametrize("phase", ["before", "after_effect"])
def test_down_after_the_cloud_died_during_up_leaves_nothing(workspace, phase):
    workspace.recipe()
    client.put_faults(workspace.cloud, [{"action": "CreateFleet", "do": "die", "phase": phase}])
    done = workspace.run("up", "plain", "--yes", code=None)
    assert done.returncode in (6, 8, 12), (done.returncode, done.stdout, done.stderr)
    assert "cloudgpu down plain" in done.stderr
    workspace.run("down", "plain")
    assert workspace.left() == {}
    assert workspace.json("status")["clusters"] == []


def started_ranks(workspace, *args):
    """Start a `train`, wait until its ranks run, and return the process and the cluster."""
    process = workspace.popen("train", "plain", "--yes", *args)
    for line in process.stdout:
        if "[rank 3] rank 3 of 4" in line:
            (record,) = workspace.home.clusters.glob("*/cluster.json")
            return process, record.parent.name
    pytest.fail(process.stderr.read())


def test_run_survives_the_death_of_its_rehearsal_server(workspace):
    """The nodes and the run continue; only the deletion waits until the server responds again."""
    workspace.recipe()
    process, cluster = started_ranks(workspace, "--set", "wait_for=go")
    os.kill(workspace.cloud.pid, signal.SIGKILL)
    run_id = workspace.json("status")["clusters"][0]["runs"][0]["run_id"]
    for node in ("0", "1"):
        workspace.run("ssh", cluster, "--node", node, "--", "touch", f".cloudgpu/runs/{run_id}/work/go")
    out, err = process.communicate(timeout=100)
    assert process.returncode == 6, (process.returncode, out, err)
    assert "[rank 3] epoch=3" in out
    assert f"cloudgpu down {cluster}" in out + err
    (run,) = workspace.json("status", "--all")["runs"]
    assert run["state"] == "succeeded"
    assert (workspace.home.run(run_id).outputs / "outputs/metrics.json").exists()
    workspace.run("down", cluster)
    assert workspace.left() == {}
    assert workspace.json("status")["clusters"] == []
    # The run, and the time for which the cluster waited until it could be deleted.
    assert {row["open_entries"] for row in workspace.json("cost")["rows"]} == {0}


def test_rehearsal_stop_terminates_nodes_of_a_killed_server(workspace):
    workspace.recipe()
    workspace.run("up", "plain", "--yes")
    nodes = NodeHostClient(RehearsalFiles.of(workspace.home).nodes)
    os.kill(workspace.cloud.pid, signal.SIGKILL)
    assert nodes.running()
    assert workspace.json("rehearsal", "stop")["was_running"]
    assert not nodes.running()
    assert not workspace.json("rehearsal", "stop")["was_running"]
    (cluster,) = workspace.json("status", "--refresh")["clusters"]
    assert {node["state"] for node in cluster["instances"]} == {"terminated"}
    workspace.run("down", "plain")
    assert workspace.left() == {}


@pytest.mark.parametrize("keep", [False, True], ids=["ended", "kept"])
def test_node_lost_during_training_is_named_within_seconds(workspace, keep):
    workspace.recipe()
    process, cluster = started_ranks(workspace, "--set", "hang=yes", *(["--keep-on-failure"] if keep else []))
    node = workspace.json("status")["clusters"][0]["instances"][1]["id"]
    began = time.monotonic()
    workspace.run("ssh", cluster, "--node", "1", "--", "sudo", "shutdown", "-h", "now", code=None)
    out, err = process.communicate(timeout=100)
    took_s = time.monotonic() - began
    assert process.returncode in (5, 9), (process.returncode, out, err)
    assert "node 1" in out + err
    assert node in out + err
    assert took_s < 45, took_s
    if keep:
        assert [one["cluster"] for one in workspace.json("status")["clusters"]] == [cluster]
        workspace.run("down", cluster)
    assert workspace.left() == {}
    assert workspace.json("status")["clusters"] == []


def test_run_that_loses_one_of_two_spot_nodes_is_lost_and_says_so_once(workspace):
    workspace.recipe(resources="{instance_type: p3dn.24xlarge, nodes: 2, regions: [us-east-1], market: spot}")
    process, _ = started_ranks(workspace, "--set", "hang=yes")
    client.put_script(workspace.cloud, {"nodes": [{"do": "spot-notice", "count": 1, "seconds": 1}]})
    out, err = process.communicate(timeout=100)
    assert process.returncode == 5, (process.returncode, out, err)
    (run,) = workspace.json("status", "--all")["runs"]
    assert run["state"] == "lost", (out, err)
    panel = " ".join(out.split("reason  ", 1)[1].split())
    assert re.match(r"spot node [01] \(i-\w+\) is terminated, most likely a spot interruption", panel), (out, err)
    assert panel.count("is terminated and its data is lost") == 1, out
    assert "failed first" not in out
    assert not re.search(r": $", err, re.MULTILINE), err
    assert workspace.left() == {}


def test_announced_spot_interruption_is_shown_and_kept_before_the_node_ends(workspace):
    workspace.recipe(resources="{instance_type: p3dn.24xlarge, nodes: 2, regions: [us-east-1], market: spot}")
    process, _ = started_ranks(workspace, "--set", "hang=yes", "--on", "rehearsal")
    client.put_script(workspace.cloud, {"nodes": [{"do": "spot-notice", "count": 1, "seconds": 120}]})
    announced = next(line for line in process.stdout if "spot interruption announced" in line)
    found = re.fullmatch(
        r"    node ([01]): spot interruption announced: AWS terminates this node at [0-9:]{8} UTC, in \d+ s, "
        r"and the run ends as lost; the recipe has no checkpoints",
        announced.rstrip("\n"),
    )
    assert found, announced
    client.advance(workspace.cloud, 121)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 5, (process.returncode, out, err)
    assert "spot interruption announced" not in out, out  # once for a node
    (run,) = workspace.json("status", "--all")["runs"]
    log = (workspace.home.run(run["run_id"]).root / "progress.log").read_text()
    assert log.count(f"node {found[1]}: spot interruption announced: AWS terminates this node") == 1
    again = r"start again with: cloudgpu train \S+ --on rehearsal --set hang=yes --set resources.market=on-demand"
    assert re.search(again, " ".join((out + err).split())), (out, err)
    assert workspace.left() == {}


def test_run_ends_as_lost_when_every_node_is_terminated(workspace):
    """The expiry ends all nodes during the run, so the state is read from the cloud."""
    workspace.recipe()
    process, cluster = started_ranks(workspace, "--set", "hang=yes")
    began = time.monotonic()
    client.advance(workspace.cloud, 2 * 3600)
    out, err = process.communicate(timeout=100)
    assert time.monotonic() - began < 45
    assert process.returncode == 5, (process.returncode, out, err)
    assert re.search(r"node [01] \(i-\w+\) is terminated", out + err)
    (run,) = workspace.json("status", "--all")["runs"]
    assert (run["cluster"], run["state"]) == (cluster, "lost")
    assert workspace.left() == {}
    assert workspace.json("status")["clusters"] == []


def test_down_fails_while_any_resource_is_left(shared):
    shared.recipe()
    shared.run("up", "plain", "--yes")
    refused = [{**DENIED, "action": action} for action in ("TerminateInstances", "DeleteFleets")]
    client.put_faults(shared.cloud, refused)
    done = shared.run("down", "plain", code=6)
    assert "fleet" in done.stderr.lower()
    assert "cloudgpu down" in done.stderr
    assert len(client.nodes(shared.cloud)) == 2
    (cluster,) = shared.json("status")["clusters"]
    assert cluster["state"] == "ending"
    assert sum(row["open_entries"] for row in shared.json("cost")["rows"]) == 1
    # what costs nothing is as little forgotten
    client.put_faults(shared.cloud, [{**DENIED, "action": "DeleteSecurityGroup"}])
    assert "sg-" in shared.run("down", "plain", code=6).stderr
    assert client.nodes(shared.cloud) == ()
    client.put_faults(shared.cloud, [])
    shared.run("down", "plain")
    assert shared.left() == {}


def test_denied_search_does_not_count_as_an_empty_result(shared):
    shared.recipe()
    shared.run("up", "plain", "--yes")
    client.put_faults(shared.cloud, [{**DENIED, "action": "DescribeVolumes"}])
    done = shared.run("down", "plain", code=None)
    assert done.returncode in (6, 8), done
    assert len(shared.json("status")["clusters"]) == 1
    client.put_faults(shared.cloud, [])
    shared.run("down", "plain")
    assert shared.left() == {}
