"""SIGKILL of `up` at every place where it goes: around every call, and before every change of a file.

`down` from another process leaves nothing; `up` again makes one gang of what is there.
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
    """Whoever is killed has written down what it was about to buy."""
    if client.nodes(sandbox.workspace.cloud):
        assert [row["open_entries"] for row in sandbox.json("cost", "--by", "user")["rows"]] == [1], case
        assert [one["cluster"] for one in sandbox.json("status")["clusters"]] == ["plain"], case


def killed_then_down(sandbox, place, *more):
    sandbox.bring("empty")
    sandbox.kill_at(place, *UP, *more)
    check_bought_is_booked(sandbox, place)
    sandbox.run(*DOWN)
    sandbox.check_empty(place)


def test_an_undisturbed_up_goes_through_every_kind_of_place(upped):
    assert upped.actions >= GANG
    phases = {place.partition(" ")[2] for place in upped.calls}
    assert phases == {"before", "effect", "answer"}
    assert len(upped.files) > 20


@pytest.mark.main_path
@pytest.mark.parametrize("place", ["CreateRole#1 effect", "CreateFleet#1 effect", "file#20"])
def test_down_after_one_kill_of_each_stage_leaves_nothing(sandbox, upped, place):
    assert place in upped.places
    killed_then_down(sandbox, place)


def test_down_after_a_kill_around_every_call_leaves_nothing(sandbox_pool, upped):
    sandbox_pool.each(upped.changes, killed_then_down)


def test_down_after_a_kill_before_every_change_of_a_file_leaves_nothing(sandbox_pool, upped):
    sandbox_pool.each(upped.files, killed_then_down)


@pytest.mark.full
def test_sixteen_nodes_killed_at_every_place_leave_nothing(sandbox_pool, upped):
    sandbox_pool.each(upped.places, lambda sandbox, place: killed_then_down(sandbox, place, *SIXTEEN))


def recorded(sandbox):
    """Token and expiry as recorded, None before they are."""
    record = sandbox.home.cluster("plain").record
    stored = json.loads(record.read_text()) if record.exists() else None
    return stored and (stored["token"], stored["expires_at"])


def standing(sandbox):
    """What stands, by kind, and the tokens on it."""
    left = sandbox.left()
    tokens = {row["tags"]["cloudgpu:token"] for rows in left.values() for row in rows}
    return Counter({kind: len(rows) for kind, rows in left.items()}), tokens


@pytest.fixture(scope="module")
def whole(sandbox_pool, upped):
    """What an undisturbed cluster consists of."""
    sandbox = sandbox_pool.sandboxes[0]
    sandbox.bring("standing")
    found, _ = standing(sandbox)
    assert found["instances"] == 2
    return found


def one_gang(whole):
    """A case: go on after a kill; exactly what an undisturbed `up` makes, under token and expiry of the first try."""

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


def test_up_after_a_kill_around_every_change_makes_one_gang(sandbox_pool, upped, whole):
    sandbox_pool.each(upped.around_changes, one_gang(whole))


@pytest.mark.full
def test_up_after_a_kill_at_every_place_makes_one_gang(sandbox_pool, upped, whole):
    sandbox_pool.each(upped.places, one_gang(whole))
