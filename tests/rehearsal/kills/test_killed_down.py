"""SIGKILL of `down` at every place where it goes: `down` again ends the rest."""

import pytest

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(3600)]

DOWN = ("down", "plain")


def killed_and_ended(sandbox, place):
    sandbox.bring("standing")
    sandbox.kill_at(place, *DOWN)
    sandbox.run(*DOWN)
    sandbox.check_empty(place)


def test_an_undisturbed_down_ends_every_kind_of_thing(downed):
    assert downed.actions >= {"DeleteFleets", "DeleteLaunchTemplate", "DeleteSecurityGroup", "DeleteRole"}


@pytest.mark.main_path
@pytest.mark.parametrize("place", ["DeleteFleets#1 before", "DeleteFleets#1 effect", "DeleteRole#1 effect"])
def test_down_again_after_one_kill_of_each_stage_leaves_nothing(sandbox, downed, place):
    assert place in downed.places
    killed_and_ended(sandbox, place)


def test_down_again_after_a_kill_around_every_call_leaves_nothing(sandbox_pool, downed):
    sandbox_pool.each(downed.changes, killed_and_ended)


def test_down_again_after_a_kill_before_every_change_of_a_file_leaves_nothing(sandbox_pool, downed):
    sandbox_pool.each(downed.files, killed_and_ended)


@pytest.mark.full
def test_down_again_after_a_kill_of_sixteen_nodes_at_every_place_leaves_nothing(sandbox_pool, downed):
    sandbox_pool.keep("sixteen", "up", "plain", "--yes", "--set", "resources.nodes=16")

    def case(sandbox, place):
        sandbox.bring("sixteen")
        sandbox.kill_at(place, *DOWN)
        sandbox.run(*DOWN)
        sandbox.check_empty(place)

    sandbox_pool.each(downed.places, case)
