"""Two commands at one cluster, one of them killed: the other wins or is told, and nothing is left."""

import pytest

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(3600)]

UP = ("up", "plain", "--yes")
DOWN = ("down", "plain")
BUSY = 11
KILLED = -9
ECONOMY = 8
"""One place in so many where not all are asked for: a race falls differently every time anyway."""


def both(grave, killed, place, other):
    """Start both; the first is killed at a place. How the other ended, and what both said."""
    first = grave.start(*killed, die_at=place, tag=".killed")
    second = grave.start(*other, tag=".other")
    # Who comes second never gets to the place: it is told that the cluster is busy.
    assert first.wait() in (KILLED, BUSY, 0), first.shown()
    code = second.wait()
    assert code in (0, BUSY), second.shown()
    return code


def downs(grave, place):
    grave.bring("standing")
    both(grave, DOWN, place, DOWN)
    grave.run(*DOWN)
    grave.check_empty(place)


def ups(grave, place):
    grave.bring("empty")
    both(grave, UP, place, UP)
    grave.run(*UP)
    left = grave.left()
    assert len(left["instances"]) == 2, place
    assert len(left["fleets"]) == 1, place
    grave.run(*DOWN)
    grave.check_empty(place)


def up_and_down(grave, place):
    grave.bring("empty")
    both(grave, UP, place, DOWN)
    grave.run(*DOWN)
    grave.check_empty(place)


def test_two_downs(graveyard, downed):
    graveyard.each(downed.places[::ECONOMY], downs)


def test_two_ups(graveyard, upped):
    graveyard.each(upped.around_changes[::ECONOMY], ups)


def test_an_up_and_a_down(graveyard, upped):
    graveyard.each(upped.places[::ECONOMY], up_and_down)


@pytest.mark.full
def test_every_pair_at_every_place(graveyard, upped, downed):
    graveyard.each(downed.places, downs)
    graveyard.each(upped.places, ups)
    graveyard.each(upped.places, up_and_down)
