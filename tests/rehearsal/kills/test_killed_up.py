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


def check_bought_is_booked(sandbox, case):
    """Check that a killed `up` had recorded the nodes that it launched."""
    if client.nodes(sandbox.workspace.cloud):
        assert [row["open_entries"] for row in sandbox.json("cost", "--by", "user")["rows"]] == [1], case
        assert [one["cluster"] for one in sandbox.json("status")["clusters"]] == ["plain"], case


def killed_then_down(sandbox, place, *more):
    sandbox.bring("empty")
    sandbox.kill_at(place, *UP, *more)
    check_bought_is_booked(sandbox, place)
    sandbox.run(*DOWN)
    sandbox.check_empty(place)


def test_uninterrupted_up_covers_every_kind_of_kill_point(upped):
    assert upped.actions >= GANG
    phases = {place.partition(" ")[2] for place in upped.calls}
    assert phases == {"before", "effect", "answer"}
    assert len(upped.files) > 20


@pytest.mark.main_path
@pytest.mark.parametrize("place", ["CreateRole#1 effect", "CreateFleet#1 effect", "file#20"])
def test_down_after_up_killed_in_each_stage_leaves_nothing(sandbox, upped, place):
    assert place in upped.places
    killed_then_down(sandbox, place)


def test_down_after_up_killed_around_any_call_leaves_nothing(sandbox_pool, upped):
    sandbox_pool.each(upped.changes, killed_then_down)


def test_down_after_up_killed_before_any_file_change_leaves_nothing(sandbox_pool, upped):
    sandbox_pool.each(upped.files, killed_then_down)


@pytest.mark.full
def test_down_after_up_of_sixteen_nodes_killed_anywhere_leaves_nothing(sandbox_pool, upped):
    sandbox_pool.each(upped.places, lambda sandbox, place: killed_then_down(sandbox, place, *SIXTEEN))


def recorded(sandbox):
    """Return the recorded token and expiry, or None if there is no record yet."""
    record = sandbox.home.cluster("plain").record
    stored = json.loads(record.read_text()) if record.exists() else None
    return stored and (stored["token"], stored["expires_at"])


def standing(sandbox):
    """Count the existing resources by kind, and collect their tokens."""
    left = sandbox.left()
    tokens = {row["tags"]["cloudgpu:token"] for rows in left.values() for row in rows}
    return Counter({kind: len(rows) for kind, rows in left.items()}), tokens


@pytest.fixture(scope="module")
def whole(sandbox_pool, upped):
    """Count the resources of an uninterrupted cluster by kind."""
    sandbox = sandbox_pool.sandboxes[0]
    sandbox.bring("standing")
    found, _ = standing(sandbox)
    assert found["instances"] == 2
    return found


def one_gang(whole):
    """Return a case that reruns a killed `up` and expects one whole cluster with the first token and expiry."""

    def case(sandbox, place):
        sandbox.bring("empty")
        sandbox.kill_at(place, *UP)
        first = recorded(sandbox)
        up = sandbox.json("up", "plain", "--yes")
        found, tokens = standing(sandbox)
        assert found == whole, place
        assert len(tokens) == 1, place
        assert first in (None, recorded(sandbox)), place
        ids = [node.instance_id for node in client.nodes(sandbox.workspace.cloud)]
        assert sorted(ids) == sorted(node["instance_id"] for node in up["nodes"]), place
        sandbox.run(*DOWN)
        sandbox.check_empty(place)

    return case


def test_up_after_kill_around_any_change_completes_a_single_cluster(sandbox_pool, upped, whole):
    sandbox_pool.each(upped.around_changes, one_gang(whole))


@pytest.mark.full
def test_up_after_kill_anywhere_completes_a_single_cluster(sandbox_pool, upped, whole):
    sandbox_pool.each(upped.places, one_gang(whole))
