"""Two commands on the same cluster, one of them killed: the other succeeds or reports `busy`; nothing is left."""

import pytest

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(3600)]

UP = ("up", "plain", "--yes")
DOWN = ("down", "plain")
BUSY = 11
KILLED = -9
ECONOMY = 8
"""Outside the long tier only every eighth kill point runs; races vary between runs anyway."""


def both(sandbox, killed, place, other):
    """Start both commands, kill the first at a place, and return the exit code of the other."""
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


def test_concurrent_downs_with_a_kill_leave_nothing(sandbox_pool, downed):
    sandbox_pool.each(downed.places[::ECONOMY], downs)


def test_concurrent_ups_with_a_kill_create_a_single_cluster(sandbox_pool, upped):
    sandbox_pool.each(upped.around_changes[::ECONOMY], ups)


def test_concurrent_up_and_down_with_a_kill_leave_nothing(sandbox_pool, upped):
    sandbox_pool.each(upped.places[::ECONOMY], up_and_down)


@pytest.mark.full
def test_every_command_pair_killed_anywhere_leaves_nothing(sandbox_pool, upped, downed):
    sandbox_pool.each(downed.places, downs)
    sandbox_pool.each(upped.places, ups)
    sandbox_pool.each(upped.places, up_and_down)
