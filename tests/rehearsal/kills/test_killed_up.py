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


def check_bought_is_booked(grave, case):
    """Whoever is killed has written down what it was about to buy."""
    if client.nodes(grave.workspace.cloud):
        assert [row["open_entries"] for row in grave.json("cost", "--by", "user")["rows"]] == [1], case
        assert [one["cluster"] for one in grave.json("status")["clusters"]] == ["plain"], case


def killed_then_down(grave, place, *more):
    grave.bring("empty")
    grave.kill_at(place, *UP, *more)
    check_bought_is_booked(grave, place)
    grave.run(*DOWN)
    grave.check_empty(place)


def test_an_undisturbed_up_goes_through_every_kind_of_place(upped):
    assert upped.actions >= GANG
    phases = {place.partition(" ")[2] for place in upped.calls}
    assert phases == {"before", "effect", "answer"}
    assert len(upped.files) > 20


@pytest.mark.main_path
@pytest.mark.parametrize("place", ["CreateRole#1 effect", "CreateFleet#1 effect", "file#20"])
def test_down_after_one_kill_of_each_stage_leaves_nothing(grave, upped, place):
    assert place in upped.places
    killed_then_down(grave, place)


def test_down_after_a_kill_around_every_call_leaves_nothing(graveyard, upped):
    graveyard.each(upped.changes, killed_then_down)


def test_down_after_a_kill_before_every_change_of_a_file_leaves_nothing(graveyard, upped):
    graveyard.each(upped.files, killed_then_down)


@pytest.mark.full
def test_sixteen_nodes_killed_at_every_place_leave_nothing(graveyard, upped):
    graveyard.each(upped.places, lambda grave, place: killed_then_down(grave, place, *SIXTEEN))


def recorded(grave):
    """Token and expiry as recorded, None before they are."""
    record = grave.home.cluster("plain").record
    stored = json.loads(record.read_text()) if record.exists() else None
    return stored and (stored["token"], stored["expires_at"])


def standing(grave):
    """What stands, by kind, and the tokens on it."""
    left = grave.left()
    tokens = {row["tags"]["cloudgpu:token"] for rows in left.values() for row in rows}
    return Counter({kind: len(rows) for kind, rows in left.items()}), tokens


@pytest.fixture(scope="module")
def whole(graveyard, upped):
    """What an undisturbed cluster consists of."""
    grave = graveyard.graves[0]
    grave.bring("standing")
    found, _ = standing(grave)
    assert found["instances"] == 2
    return found


def one_gang(whole):
    """A case: go on after a kill; exactly what an undisturbed `up` makes, under token and expiry of the first try."""

    def case(grave, place):
        grave.bring("empty")
        grave.kill_at(place, *UP)
        first = recorded(grave)
        up = grave.json("up", "plain", "--yes")
        found, tokens = standing(grave)
        assert found == whole, place
        assert len(tokens) == 1, place
        assert first in (None, recorded(grave)), place
        ids = [node.instance_id for node in client.nodes(grave.workspace.cloud)]
        assert sorted(ids) == sorted(node["instance_id"] for node in up["nodes"]), place
        grave.run(*DOWN)
        grave.check_empty(place)

    return case


def test_up_after_a_kill_around_every_change_makes_one_gang(graveyard, upped, whole):
    graveyard.each(upped.around_changes, one_gang(whole))


@pytest.mark.full
def test_up_after_a_kill_at_every_place_makes_one_gang(graveyard, upped, whole):
    graveyard.each(upped.places, one_gang(whole))
