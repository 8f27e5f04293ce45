"""SIGKILL of `down` at every call that it makes and before every change of a file: `down` again ends the rest."""

import pytest

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(900)]

UP = ("up", "plain", "--yes")
DOWN = ("down", "plain")


@pytest.fixture(scope="module")
def counted(grave):
    """What an undisturbed `down` does."""
    grave.run(*UP)
    seen = grave.count(*DOWN)
    grave.check_empty("undisturbed")
    assert set(seen.actions) >= {"DeleteFleets", "DeleteLaunchTemplate", "DeleteSecurityGroup", "DeleteRole"}
    return seen


def killed_and_ended(grave, point):
    grave.run(*UP)
    grave.kill_at(point, *DOWN)
    grave.run(*DOWN)
    grave.check_empty(point)


def test_down_again_after_a_kill_around_every_change_leaves_nothing(graveyard, counted):
    graveyard.each(counted.changes, killed_and_ended)


@pytest.mark.full
def test_down_again_after_a_kill_at_every_call_leaves_nothing(graveyard, counted):
    """The calls of the searches too, which change nothing."""
    graveyard.each(counted.everything, killed_and_ended)


def test_down_again_after_a_kill_before_every_change_of_a_file_leaves_nothing(graveyard, counted):
    def case(grave, step):
        grave.run(*UP)
        grave.kill_before_step(step, *DOWN)
        grave.run(*DOWN)
        grave.check_empty(step)

    graveyard.each(range(1, counted.steps + 1), case)
