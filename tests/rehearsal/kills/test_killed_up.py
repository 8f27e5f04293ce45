"""SIGKILL of `up` at every kill point: around every call, and before every file change.

`down` from another process leaves nothing; running `up` again completes a single cluster.
"""

import json
from collections import Counter

import pytest

from cloudgpu.rehearsal import client

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(3600)]

UP = ("up", "plain", "--yes")
DOWN = ("down", "plain")
GANG = {"CreateFleet", "CreateLaunchTemplate", "CreateSecurityGroup", "CreateRole", "CreateInstanceProfile"}
SIXTEEN = ("--set", "resources.nodes=16")


def check_nodes_are_recorded(sandbox, case):
    """Check that a killed `up` recorded its nodes before it launched them."""
    if client.nodes(sandbox.workspace.cloud):
        assert [row["open_entries"] for row in sandbox.json("cost", "--by", "user")["rows"]] == [1], case
        assert [cluster["cluster"] for cluster in sandbox.json("status")["clusters"]] == ["plain"], case


def kill_up_then_down(sandbox, point, *more):
    sandbox.restore("empty")
    sandbox.kill_at(point, *UP, *more)
    check_nodes_are_recorded(sandbox, point)
    sandbox.run(*DOWN)
    sandbox.check_empty(point)


def test_uninterrupted_up_covers_every_kind_of_kill_point(up_points):
    assert up_points.actions >= GANG
    phases = {point.partition(" ")[2] for point in up_points.calls}
    assert phases == {"before", "effect", "answer"}
    assert len(up_points.files) > 20


@pytest.mark.main_path
@pytest.mark.parametrize("point", ["CreateRole#1 effect", "CreateFleet#1 effect", "file#20"])
def test_down_after_up_killed_in_each_stage_leaves_nothing(sandbox, up_points, point):
    assert point in up_points.all
    kill_up_then_down(sandbox, point)


def test_down_after_up_killed_around_any_call_leaves_nothing(sandbox_pool, up_points):
    sandbox_pool.run_cases(up_points.changes, kill_up_then_down)


def test_down_after_up_killed_before_any_file_change_leaves_nothing(sandbox_pool, up_points):
    sandbox_pool.run_cases(up_points.files, kill_up_then_down)


@pytest.mark.full
def test_down_after_up_of_sixteen_nodes_killed_anywhere_leaves_nothing(sandbox_pool, up_points):
    sandbox_pool.run_cases(up_points.all, lambda sandbox, point: kill_up_then_down(sandbox, point, *SIXTEEN))


def recorded_identity(sandbox):
    """Return the recorded token and expiry, or None if there is no record yet."""
    record = sandbox.home.cluster("plain").record
    stored = json.loads(record.read_text()) if record.exists() else None
    return stored and (stored["token"], stored["expires_at"])


def existing_resources(sandbox):
    """Count the existing resources by kind, and collect their tokens."""
    resources = sandbox.remaining_resources()
    tokens = {row["tags"]["cloudgpu:token"] for rows in resources.values() for row in rows}
    return Counter({kind: len(rows) for kind, rows in resources.items()}), tokens


@pytest.fixture(scope="module")
def complete_counts(sandbox_pool, up_points):
    """Number of resources of each kind in a complete cluster."""
    sandbox = sandbox_pool.sandboxes[0]
    sandbox.restore("cluster")
    counts, _ = existing_resources(sandbox)
    assert counts["instances"] == 2
    return counts


def kill_up_then_repeat(complete_counts):
    """Return a case that reruns a killed `up` and expects a single complete cluster with the first token and expiry."""

    def case(sandbox, point):
        sandbox.restore("empty")
        sandbox.kill_at(point, *UP)
        identity = recorded_identity(sandbox)
        up = sandbox.json("up", "plain", "--yes")
        counts, tokens = existing_resources(sandbox)
        assert counts == complete_counts, point
        assert len(tokens) == 1, point
        assert identity in (None, recorded_identity(sandbox)), point
        ids = [node.instance_id for node in client.nodes(sandbox.workspace.cloud)]
        assert sorted(ids) == sorted(node["instance_id"] for node in up["nodes"]), point
        sandbox.run(*DOWN)
        sandbox.check_empty(point)

    return case


def test_up_after_kill_around_any_change_completes_a_single_cluster(sandbox_pool, up_points, complete_counts):
    sandbox_pool.run_cases(up_points.around_changes, kill_up_then_repeat(complete_counts))


@pytest.mark.full
def test_up_after_kill_anywhere_completes_a_single_cluster(sandbox_pool, up_points, complete_counts):
    sandbox_pool.run_cases(up_points.all, kill_up_then_repeat(complete_counts))
