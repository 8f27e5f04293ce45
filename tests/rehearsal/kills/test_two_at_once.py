"""Two commands at one cluster, one of them killed: the other wins or is told, and nothing is left."""

import pytest

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(3600)]

UP = ("up", "plain", "--yes")
DOWN = ("down", "plain")
BUSY = 11
KILLED = -9
ECONOMY = 8
"""One place in so many where not all are asked for: a race falls differently every time anyway."""


def both(sandbox, killed, place, other):
    """Start both; the first is killed at a place. How the other ended, and what both said."""
    first = sandbox.start(*killed, die_at=place, tag=".killed")
    second = sandbox.start(*other, tag=".other")
    # Who comes second never gets to the place: it is told that the cluster is busy.
    assert first.wait() in (KILLED, BUSY, 0), first.shown()
    code = second.wait()
    assert code in (0, BUSY), second.shown()
    return code


def downs(sandbox, place):
    sandbox.bring("standing")
    both(sandbox, DOWN, place, DOWN)
    sandbox.run(*DOWN)
    sandbox.check_empty(place)


def ups(sandbox, place):
    sandbox.bring("empty")
    both(sandbox, UP, place, UP)
    sandbox.run(*UP)
    left = sandbox.left()
    assert len(left["instances"]) == 2, place
    assert len(left["fleets"]) == 1, place
    sandbox.run(*DOWN)
    sandbox.check_empty(place)


def up_and_down(sandbox, place):
    sandbox.bring("empty")
    both(sandbox, UP, place, DOWN)
    sandbox.run(*DOWN)
    sandbox.check_empty(place)


def test_two_downs(sandbox_pool, downed):
    sandbox_pool.each(downed.places[::ECONOMY], downs)


def test_two_ups(sandbox_pool, upped):
    sandbox_pool.each(upped.around_changes[::ECONOMY], ups)


def test_an_up_and_a_down(sandbox_pool, upped):
    sandbox_pool.each(upped.places[::ECONOMY], up_and_down)


@pytest.mark.full
def test_every_pair_at_every_place(sandbox_pool, upped, downed):
    sandbox_pool.each(downed.places, downs)
    sandbox_pool.each(upped.places, ups)
    sandbox_pool.each(upped.places, up_and_down)
