"""SIGKILL of `down` at every kill point: running `down` again deletes the rest."""

import pytest

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(3600)]

DOWN = ("down", "plain")


def killed_and_ended(sandbox, place):
    sandbox.bring("standing")
    sandbox.kill_at(place, *DOWN)
    sandbox.run(*DOWN)
    sandbox.check_empty(place)


def test_uninterrupted_down_makes_every_kind_of_deletion_call(downed):
    assert downed.actions >= {"DeleteFleets", "DeleteLaunchTemplate", "DeleteSecurityGroup", "DeleteRole"}


@pytest.mark.main_path
@pytest.mark.parametrize("place", ["DeleteFleets#1 before", "DeleteFleets#1 effect", "DeleteRole#1 effect"])
def test_repeated_down_after_kill_in_each_stage_leaves_nothing(sandbox, downed, place):
    assert place in downed.places
    killed_and_ended(sandbox, place)


def test_repeated_down_after_kill_around_any_call_leaves_nothing(sandbox_pool, downed):
    sandbox_pool.each(downed.changes, killed_and_ended)


def test_repeated_down_after_kill_before_any_file_change_leaves_nothing(sandbox_pool, downed):
    sandbox_pool.each(downed.files, killed_and_ended)


@pytest.mark.full
def test_repeated_down_of_sixteen_nodes_after_any_kill_leaves_nothing(sandbox_pool, downed):
    sandbox_pool.keep("sixteen", "up", "plain", "--yes", "--set", "resources.nodes=16")

    def case(sandbox, place):
        sandbox.bring("sixteen")
        sandbox.kill_at(place, *DOWN)
        sandbox.run(*DOWN)
        sandbox.check_empty(place)

    sandbox_pool.each(downed.places, case)
