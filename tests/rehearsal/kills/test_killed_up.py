"""SIGKILL of `up` at every call that it makes and before every change of a file.

`down` from another process leaves nothing; `up` again makes one gang of what is there.
"""

import json
from collections import Counter

import pytest

from cloudgpu.rehearsal import client

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(900)]

UP = ("up", "plain", "--yes")
DOWN = ("down", "plain")
GANG = {"CreateFleet", "CreateLaunchTemplate", "CreateSecurityGroup", "CreateRole", "CreateInstanceProfile"}


@pytest.fixture(scope="module")
def counted(grave):
    """What an undisturbed `up` does."""
    seen = grave.count(*UP)
    grave.run(*DOWN)
    grave.check_empty("undisturbed")
    assert set(seen.actions) >= GANG
    return seen


def check_bought_is_booked(grave, case):
    """Whoever is killed has written down what it was about to buy."""
    if client.nodes(grave.bench.cloud):
        assert [row["open_entries"] for row in grave.json("cost", "--by", "user")["rows"]] == [1], case
        assert [one["cluster"] for one in grave.json("status")["clusters"]] == ["plain"], case


def test_down_after_a_kill_at_every_call_leaves_nothing(graveyard, counted):
    def case(grave, point):
        grave.kill_at(point, *UP)
        check_bought_is_booked(grave, point)
        grave.run(*DOWN)
        grave.check_empty(point)

    graveyard.each(counted.everything, case)


def test_down_after_a_kill_before_every_change_of_a_file_leaves_nothing(graveyard, counted):
    def case(grave, step):
        grave.kill_before_step(step, *UP)
        grave.run(*DOWN)
        grave.check_empty(step)

    graveyard.each(range(1, counted.steps + 1), case)


def recorded(bench):
    """Token and expiry as recorded, None before they are."""
    record = bench.home.cluster("plain").record
    stored = json.loads(record.read_text()) if record.exists() else None
    return stored and (stored["token"], stored["expires_at"])


def standing(bench):
    """What stands, by kind, and the tokens on it."""
    left = bench.left()
    tokens = {row["tags"]["cloudgpu:token"] for rows in left.values() for row in rows}
    return Counter({kind: len(rows) for kind, rows in left.items()}), tokens


@pytest.fixture(scope="module")
def whole(grave):
    """What an undisturbed cluster consists of."""
    grave.run(*UP)
    found, _ = standing(grave.bench)
    grave.run(*DOWN)
    assert found["instances"] == 2
    return found


def check_one_gang(grave, whole, case):
    """Go on after a kill: exactly what an undisturbed `up` makes, under the token and the expiry of the first try."""
    first = recorded(grave.bench)
    up = grave.json("up", "plain", "--yes")
    found, tokens = standing(grave.bench)
    assert found == whole, case
    assert len(tokens) == 1, case
    assert first in (None, recorded(grave.bench)), case
    ids = [node.instance_id for node in client.nodes(grave.bench.cloud)]
    assert sorted(ids) == sorted(node["instance_id"] for node in up["nodes"]), case
    grave.run(*DOWN)
    grave.check_empty(case)


def test_up_after_a_kill_around_every_change_makes_one_gang(graveyard, counted, whole):
    def case(grave, point):
        grave.kill_at(point, *UP)
        assert recorded(grave.bench)
        check_one_gang(grave, whole, point)

    graveyard.each(counted.changes, case)


@pytest.mark.full
def test_up_after_a_kill_before_every_change_of_a_file_makes_one_gang(graveyard, counted, whole):
    def case(grave, step):
        grave.kill_before_step(step, *UP)
        check_one_gang(grave, whole, step)

    graveyard.each(range(1, counted.steps + 1), case)


@pytest.mark.full
def test_sixteen_nodes_killed_around_every_change_leave_nothing(graveyard, counted):
    def case(grave, point):
        grave.kill_at(point, *UP, "--set", "resources.nodes=16")
        grave.run(*DOWN)
        grave.check_empty(point)

    graveyard.each(counted.changes, case)
