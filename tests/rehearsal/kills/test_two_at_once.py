"""Two commands on the same cluster, one of them killed: the other succeeds or reports `busy`; nothing is left."""

import pytest

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(3600)]

UP = ("up", "plain", "--yes")
DOWN = ("down", "plain")
BUSY = 11
KILLED = -9
STRIDE = 8
"""Without `--full`, only every eighth kill point is tried, because races vary between runs anyway."""


def run_both(sandbox, killed, point, other):
    """Start both commands, kill the first at a point, and return the exit code of the other."""
    first = sandbox.start(*killed, kill_at=point, tag=".killed")
    second = sandbox.start(*other, tag=".other")
    # If the other command gets the lease first, this one never reaches the point and reports that the cluster is busy.
    assert first.wait() in (KILLED, BUSY, 0), first.output()
    code = second.wait()
    assert code in (0, BUSY), second.output()
    return code


def run_concurrent_downs(sandbox, point):
    sandbox.restore("cluster")
    run_both(sandbox, DOWN, point, DOWN)
    sandbox.run(*DOWN)
    sandbox.check_empty(point)


def run_concurrent_ups(sandbox, point):
    sandbox.restore("empty")
    run_both(sandbox, UP, point, UP)
    sandbox.run(*UP)
    resources = sandbox.remaining_resources()
    assert len(resources["instances"]) == 2, point
    assert len(resources["fleets"]) == 1, point
    sandbox.run(*DOWN)
    sandbox.check_empty(point)


def run_concurrent_up_and_down(sandbox, point):
    sandbox.restore("empty")
    run_both(sandbox, UP, point, DOWN)
    sandbox.run(*DOWN)
    sandbox.check_empty(point)


def test_concurrent_downs_with_a_kill_leave_nothing(sandbox_pool, down_points):
    sandbox_pool.run_cases(down_points.all[::STRIDE], run_concurrent_downs)


def test_concurrent_ups_with_a_kill_create_a_single_cluster(sandbox_pool, up_points):
    sandbox_pool.run_cases(up_points.around_changes[::STRIDE], run_concurrent_ups)


def test_concurrent_up_and_down_with_a_kill_leave_nothing(sandbox_pool, up_points):
    sandbox_pool.run_cases(up_points.all[::STRIDE], run_concurrent_up_and_down)


@pytest.mark.full
def test_every_command_pair_killed_anywhere_leaves_nothing(sandbox_pool, up_points, down_points):
    sandbox_pool.run_cases(down_points.all, run_concurrent_downs)
    sandbox_pool.run_cases(up_points.all, run_concurrent_ups)
    sandbox_pool.run_cases(up_points.all, run_concurrent_up_and_down)
