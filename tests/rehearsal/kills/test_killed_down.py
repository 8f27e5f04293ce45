"""SIGKILL of `down` at every kill point: running `down` again deletes the rest."""

import pytest

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(3600)]

DOWN = ("down", "plain")


def kill_down_then_repeat(sandbox, point):
    sandbox.restore("cluster")
    sandbox.kill_at(point, *DOWN)
    sandbox.run(*DOWN)
    sandbox.check_empty(point)


def test_uninterrupted_down_makes_every_kind_of_deletion_call(down_points):
    assert down_points.actions >= {"DeleteFleets", "DeleteLaunchTemplate", "DeleteSecurityGroup", "DeleteRole"}


@pytest.mark.parametrize("point", ["DeleteFleets#1 before", "DeleteFleets#1 effect", "DeleteRole#1 effect"])
def test_repeated_down_after_kill_in_each_stage_leaves_nothing(sandbox, down_points, point):
    assert point in down_points.all
    kill_down_then_repeat(sandbox, point)


def test_repeated_down_after_kill_around_any_call_leaves_nothing(sandbox_pool, down_points):
    sandbox_pool.run_cases(down_points.changes, kill_down_then_repeat)


def test_repeated_down_after_kill_before_any_file_change_leaves_nothing(sandbox_pool, down_points):
    sandbox_pool.run_cases(down_points.files, kill_down_then_repeat)


@pytest.mark.full
def test_repeated_down_of_sixteen_nodes_after_any_kill_leaves_nothing(sandbox_pool, down_points):
    sandbox_pool.save("sixteen_nodes", "up", "plain", "--yes", "--set", "resources.nodes=16")

    def case(sandbox, point):
        sandbox.restore("sixteen_nodes")
        sandbox.kill_at(point, *DOWN)
        sandbox.run(*DOWN)
        sandbox.check_empty(point)

    sandbox_pool.run_cases(down_points.all, case)
