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


def test_down_after_a_kill_at_every_call_leaves_nothing(grave, counted):
    for point in counted.everything:
        grave.kill_at(point, *UP)
        grave.run(*DOWN)
        grave.check_empty(point)


def test_down_after_a_kill_before_every_change_of_a_file_leaves_nothing(grave, counted):
    for step in range(1, counted.steps + 1):
        grave.kill_before_step(step, *UP)
        grave.run(*DOWN)
        grave.check_empty(step)


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


def test_up_after_a_kill_around_every_change_makes_one_gang(grave, counted, whole):
    for point in counted.changes:
        grave.kill_at(point, *UP)
        token, expiry = recorded(grave.bench)
        up = grave.json("up", "plain", "--yes")
        found, tokens = standing(grave.bench)
        assert (found, tokens) == (whole, {token}), point
        assert recorded(grave.bench) == (token, expiry), point
        ids = [node.instance_id for node in client.nodes(grave.bench.cloud)]
        assert sorted(ids) == sorted(node["instance_id"] for node in up["nodes"]), point
        grave.run(*DOWN)
        grave.check_empty(point)
