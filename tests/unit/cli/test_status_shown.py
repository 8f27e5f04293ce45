"""Exact output of `status`, `cost`, `up`, `down` and `rehearsal status`."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace

import pytest

from cloudgpu.app.cluster_status import list_cluster_statuses, refresh
from cloudgpu.backends.lifecycle.results import DeletionResult, ProvisionedCluster
from cloudgpu.cli.commands.rehearsal import status_json
from cloudgpu.cli.commands.rehearsal import status_lines as rehearsal_lines
from cloudgpu.cli.commands.status import run_lines, run_rows, status_lines
from cloudgpu.cli.render.cluster import deletion_lines, provisioned_json, provisioned_rows, provisioned_title
from cloudgpu.cli.terminal import output
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.paths import Home
from cloudgpu.rehearsal.client import NodeInfo, RehearsalClient, RehearsalStatus
from cloudgpu.run.progress import Stages
from cloudgpu.state.record_store import RecordStore
from tests.cluster_records import changed
from tests.manual_clock import ManualClock

NODE = Node(
    index=0,
    instance_id="i-1",
    address="127.55.0.2",
    port=2222,
    user="ubuntu",
    host_keys=("SHA256:abc",),
    private_address="10.0.0.2",
    instance_type="p3dn.24xlarge",
    zone="us-east-1c",
    gpu="V100",
    gpus=8,
    simulated=True,
)


def test_status_from_records_shows_age_and_refresh_hint(standing_status, now):
    assert status_lines([standing_status], now) == [
        "s1  up  (simulated)",
        "  2 x p3dn.24xlarge in us-east-1c, owner ann, team vision",
        "  AWS would charge $62.42 an hour, $10.40 so far; expires 2026-11-21 04:20 UTC, in 50 min",
        "  as recorded 3 min ago; to query the cloud: --refresh",
    ]


@pytest.mark.parametrize(
    ("target", "money"), [("rehearsal", "AWS would charge $62.42 an hour"), ("aws", "$62.42 an hour")]
)
def test_cluster_without_instances_yet_is_being_created_and_has_no_cost_so_far(standing_status, target, money, now):
    """Regression: `status` showed $1.06 so far for a cluster whose creation was cancelled within a second."""
    record = changed(standing_status.record, target=target, state="making", instance_ids=())
    lines = status_lines([replace(standing_status, record=record, state="making")], now)
    assert lines[0].split()[1] == "creating"
    assert lines[2] == f"  {money}; no instances recorded yet; expires 2026-11-21 04:20 UTC, in 50 min"


def test_status_of_refreshed_cluster_shows_nodes_and_runs(standing_status, run, now):
    record = changed(standing_status.record, target="aws", team="")
    live = replace(run, state="running", ended_at=None)
    asked = replace(
        standing_status, record=record, age_s=0.0, nodes=(("i-1", "running"), ("i-2", "pending")), runs=(live,)
    )
    assert status_lines([asked], now) == [
        "s1  up",
        "  2 x p3dn.24xlarge in us-east-1c, owner ann",
        "  $62.42 an hour, $10.40 so far; expires 2026-11-21 04:20 UTC, in 50 min",
        "  i-1  running",
        "  i-2  pending",
        "  run quickstart-k3fz8w  running, started 3 min ago",
        "  as reported by the cloud just now",
    ]
    assert status_lines([], now) == ["no cluster is recorded on this machine"]


def test_failed_cloud_query_is_shown_with_recorded_state(standing_status, now):
    (*_, problem, age) = status_lines([replace(standing_status, problem="no route")], now)
    assert problem == "  the cloud could not be queried: no route"
    assert age == "  as recorded 3 min ago; to query the cloud: --refresh"


def test_damaged_record_is_shown_with_delete_command(standing_status, now):
    assert status_lines([replace(standing_status, state="damaged")], now) == [
        "s1  damaged",
        "  its record, last written 3 min ago, cannot be read; its resources and cost are unknown",
        "  to find the cluster by its tag and delete it: cloudgpu down s1",
    ]


def test_runs_are_listed_with_age_and_result(run, now):
    lost = replace(run, run_id="other-2", state="running", ended_at=None, started_at=now - timedelta(hours=30))
    assert run_lines([lost, run], ["bad-3"], [], now) == [
        "",
        "run                state      started                                took  result",
        "other-2            unknown    2026-11-19 21:30 UTC  1 d ago                "
        "last seen running; its cluster is deleted",
        "quickstart-k3fz8w  succeeded  2026-11-21 03:27 UTC  3 min ago  3 min 00 s  accuracy 0.9833",
        "bad-3  unknown: its record cannot be read",
    ]
    assert run_lines([], [], [], now) == ["", "no runs"]
    assert set(run_rows([run], [])[0]) == set(run_rows([], [], ["bad-3"])[0])
    assert set(run_rows([run], [])[0]) == {
        *("run_id", "cluster", "recipe", "state", "reason", "started_at", "ended_at", "metrics"),
    }


def test_provisioned_cluster_panel_shows_login_train_and_delete_commands(cluster):
    standing = ProvisionedCluster(cluster, Inventory("s1", (NODE,)), made=True)
    assert (
        "\n".join(output.plain_panel(provisioned_title(standing), provisioned_rows(standing), 100))
        == """
cluster s1 is running (simulated)
  nodes    2 x p3dn.24xlarge in us-east-1c
  expires  2026-11-21 04:20 UTC, even if this machine is off
  node 0   i-1  ubuntu@127.55.0.2 port 2222
  log in   cloudgpu ssh s1
  train    cloudgpu train RECIPE --cluster s1
  delete   cloudgpu down s1"""
    )
    assert provisioned_title(replace(standing, made=False)).startswith("cluster s1 is already running")
    clock = ManualClock(datetime(2026, 11, 21, tzinfo=UTC))
    stages = Stages(clock, lambda _what: None)
    with stages.stage("provision"):
        clock.sleep(3.5)
    document = provisioned_json(standing, stages)
    assert document["stages"] == [{"name": "provision", "seconds": 3.5}]
    assert document["cost"]["hourly_usd"] == "62.424"
    assert set(document) == {
        *("cluster", "made", "simulated", "region", "zone", "instance_type", "nodes", "node_hourly_usd"),
        *("expires_at", "tried", "run_id", "stages", "cost", "left"),
    }


def test_deletion_output_lists_instances_orphans_and_cost():
    ended = DeletionResult("s1", known=True, instances=("i-1", "i-2"), usd=Decimal("0.0379"), simulated=True)
    assert deletion_lines(ended) == [
        "cluster s1 is deleted, verified by tag search; 2 instances terminated",
        "  i-1",
        "  i-2",
        "  cost $0.0379 (simulated; nothing was charged)",
    ]
    orphan = DeletionResult("s1", known=False, orphans=("security-group sg-1",))
    assert deletion_lines(orphan) == [
        "cluster s1 is deleted, verified by tag search; 1 resource deleted",
        "  security-group sg-1  (found only by its tag)",
    ]
    assert deletion_lines(replace(ended, simulated=False))[-1] == "  cost $0.0379"


def test_deletion_output_says_where_an_unknown_cluster_was_searched_for():
    nowhere = DeletionResult("x", known=False, target="rehearsal", searched=("us-east-1", "eu-west-1"))
    line = "there is no cluster x on rehearsal: nothing to delete in us-east-1, eu-west-1 or IAM"
    assert deletion_lines(nowhere) == [line]
    other = "  open ledger rows on aws: cloudgpu down x --on aws"
    assert deletion_lines(replace(nowhere, other_targets=("aws",))) == [line, other]
    on_hosts = DeletionResult("x", known=False, own=True, target="ssh", other_targets=("aws",))
    assert deletion_lines(on_hosts)[1:] == [other]


def test_rehearsal_status_lists_nodes_and_idle_stop_time(now):
    cloud = RehearsalClient("http://127.0.0.1:4711", "AKIA", "secret", pid=7)
    node = NodeInfo(
        "i-1", "g4dn.xlarge", "us-east-1", "us-east-1a", "running", "127.1.0.2", 22, "ubuntu", "SHA256:a", "s1"
    )
    assert rehearsal_lines(
        RehearsalStatus(cloud, (node, replace(node, address="", state="pending")), (), 189.7), now
    ) == [
        "rehearsal cloud (simulated AWS) at http://127.0.0.1:4711, 190 MiB of memory",
        "  instance  type         zone        state    cluster  log in                    host key",
        "  i-1       g4dn.xlarge  us-east-1a  running  s1       ubuntu@127.1.0.2 port 22  SHA256:a",
        "  i-1       g4dn.xlarge  us-east-1a  pending  s1       not listening             SHA256:a",
    ]
    idle = RehearsalStatus(cloud, (), (), 189.7, now + timedelta(minutes=29, seconds=30))
    assert rehearsal_lines(idle, now)[1] == "  no nodes; stops automatically in 29 min"
    assert rehearsal_lines(RehearsalStatus(None), now)[0] == "no rehearsal cloud is running"
    document = status_json(idle)
    assert document["simulated"] is True
    assert set(document) == {"running", "simulated", "endpoint", "regions", "resident_mib", "clock_ahead_s", "nodes"}
    assert "secret" not in str(document)


@pytest.mark.parametrize(
    ("states", "state", "rate", "lost"),
    [
        (("running", "terminated"), "degraded", "$31.21", "1 node"),
        (("terminated", "shutting-down"), "terminated", "$0.00", "every node"),
    ],
)
def test_terminated_nodes_cost_nothing_and_are_named(standing_status, now, states, state, rate, lost):
    nodes = tuple(zip(("i-1", "i-2"), states, strict=True))
    record = changed(standing_status.record, target="aws", team="", market="spot")
    asked = replace(standing_status, record=record, state=state, age_s=0.0, nodes=nodes)
    assert status_lines([asked], now) == [
        f"s1  {state}",
        "  2 x p3dn.24xlarge in us-east-1c, owner ann",
        f"  {rate} an hour, $10.40 so far; expires 2026-11-21 04:20 UTC, in 50 min",
        *(f"  {node}  {of_node}" for node, of_node in nodes),
        f"  {lost} of the cluster is lost, most likely interrupted because they are spot nodes; delete what is left: "
        "cloudgpu down s1",
        "  as reported by the cloud just now",
    ]


def test_instances_of_recorded_cluster_have_recorded_state(standing_status):
    def states(state):
        return [row["state"] for row in replace(standing_status, state=state).as_json()["instances"]]

    assert states("up") == ["running", "running"]
    assert states("expired") == states("making") == ["unknown", "unknown"]


def test_rehearsal_status_shows_shifted_clock(now):
    ahead = RehearsalStatus(None, clock_ahead=timedelta(hours=8, milliseconds=3))
    line = "  simulated time 2026-11-21 11:30 UTC: the simulated clock is 8h ahead; to reset it: {}"
    assert line.format("cloudgpu rehearsal advance 8h --back") in rehearsal_lines(ahead, now)
    assert status_json(ahead)["clock_ahead_s"] == 28800
    cloud = RehearsalClient("http://127.0.0.1:4711", "AKIA", "secret", pid=7)
    behind = RehearsalStatus(cloud, clock_ahead=timedelta(minutes=-90))
    assert "is 1h30m behind; to reset it: cloudgpu rehearsal advance 1h30m" in rehearsal_lines(behind, now)[1]
    assert all("simulated time" not in line for line in rehearsal_lines(RehearsalStatus(cloud), now))


def test_clusters_of_a_stopped_rehearsal_cloud_ended_with_it(tmp_path, cluster, run, now):
    store = RecordStore(Home(tmp_path))
    store.save_cluster(changed(cluster, market="spot"), now)
    store.save_run(replace(run, cluster="s1", state="running", ended_at=None))
    first, last = now - timedelta(minutes=2), now - timedelta(minutes=1)
    for others in ({}, {"i-1": first}, {"i-1": first, "i-3": last}):
        (before,) = list_cluster_statuses(store, now, None, others)
        assert (before.state, before.stopped_at) == ("up", None)
    (ended,) = list_cluster_statuses(store, now, None, {"i-1": first, "i-2": last})
    lines = status_lines([ended], now)
    assert lines[0] == "s1  terminated  (simulated)"
    assert lines[2].startswith("  AWS would charge $0.00 an hour, $9.36 so far; ")
    assert lines[3:5] == [
        "  the rehearsal cloud was stopped at 2026-11-21 03:29 UTC, and its nodes ended with it; delete what is left: "
        "cloudgpu down s1",
        "  run quickstart-k3fz8w  lost, started 3 min ago",
    ]
    told = ended.as_json()
    assert {row["state"] for row in told["instances"]} == {"terminated"}
    assert told["stopped_at"] == "2026-11-21T03:29:00Z"
    assert told["runs"] == [{"run_id": "quickstart-k3fz8w", "state": "lost"}]
    asked = SimpleNamespace(
        account=lambda: cluster.identity.account,
        endpoint=cluster.identity.endpoint,
        instance_states=lambda _region, ids: dict.fromkeys(ids, "terminated"),
    )
    refreshed = refresh(ended, asked, store, now)
    assert "spot" not in "\n".join(status_lines([refreshed], now))
    asked.instance_states = lambda _region, ids: dict.fromkeys(ids, "running")
    alive = refresh(ended, asked, store, now)  # the cloud knows better
    assert (alive.state, alive.stopped_at) == ("up", None)


def test_unfinished_up_may_have_launched_nodes_after_the_stop(tmp_path, cluster, now):
    """While a resumed `up` launches nodes, its record lists the instances of the earlier launch."""
    store, ended = RecordStore(Home(tmp_path)), dict.fromkeys(("i-1", "i-2"), now - timedelta(minutes=5))
    for state, saved, shown in (
        ("making", now - timedelta(minutes=6), "terminated"),
        ("making", now - timedelta(minutes=4), "making"),
        ("up", now - timedelta(minutes=4), "terminated"),
    ):
        store.save_cluster(changed(cluster, state=state), saved)
        assert list_cluster_statuses(store, now, None, ended)[0].state == shown
    store.save_cluster(changed(cluster, state="making", instance_ids=()), now - timedelta(minutes=6))
    assert list_cluster_statuses(store, now, None, ended)[0].state == "making"
    store.save_cluster(changed(cluster, target="aws"), now - timedelta(minutes=6))
    assert list_cluster_statuses(store, now, None, ended)[0].state == "up"


def test_cost_of_a_cluster_that_ended_with_its_cloud_does_not_rise(tmp_path, cluster, now):
    store = RecordStore(Home(tmp_path))
    store.save_cluster(cluster, now)
    ended = dict.fromkeys(("i-1", "i-2"), now - timedelta(minutes=5))
    spent = {
        list_cluster_statuses(store, now + timedelta(hours=hours), None, ended)[0].spent_usd for hours in (0, 1, 900)
    }
    assert spent == {Decimal("5.20")}  # 5 of 10 minutes
    ahead = dict.fromkeys(("i-1", "i-2"), now + timedelta(days=9))  # the clock was set back
    assert list_cluster_statuses(store, now, None, ahead)[0].spent_usd == Decimal("10.40")


def test_run_has_one_state_on_the_screen_and_in_json(standing_status, run, now):
    live = replace(run, cluster="s1", state="running", ended_at=None)
    stopped = replace(standing_status, state="terminated", stopped_at=now, runs=(live,))
    cases = [
        (live, [standing_status], "running", ""),
        (live, [stopped], "lost", "its nodes ended when the rehearsal cloud was stopped"),
        (live, [], "unknown", "last seen running; its cluster is deleted"),
        # The final state is known, but the outputs are not downloaded yet.
        (replace(live, state="failed", reason="rank 0 exited"), [stopped], "failed", "rank 0 exited"),
        (replace(run, cluster="s1"), [stopped], "succeeded", ""),
    ]
    for shown, clusters, state, reason in cases:
        (row,) = run_rows([shown], clusters)
        assert (row["state"], row["reason"]) == (state, reason)
        line = run_lines([shown], [], clusters, now)[2]
        assert line.split()[1] == state
        assert line.endswith(reason or "accuracy 0.9833")
    assert stopped.as_json()["runs"] == [{"run_id": live.run_id, "state": "lost"}]
