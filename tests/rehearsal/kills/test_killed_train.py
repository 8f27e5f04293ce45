"""SIGKILL of `train` around its calls, on real nodes: `down` of the recorded clusters leaves nothing."""

import pytest

from cloudgpu.state.record_store import RecordStore

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(3600)]

TRAIN = ("train", "plain", "--yes")


@pytest.fixture(scope="module")
def train_points(real_node_pool):
    """Kill points of an uninterrupted `train`."""
    points = real_node_pool.sandboxes[0].kill_points(*TRAIN)
    real_node_pool.sandboxes[0].check_empty("uninterrupted")
    assert points.actions >= {"CreateFleet", "DeleteFleets"}
    return points


def kill_train_then_down(sandbox, point):
    killed = sandbox.kill_at(point, *TRAIN)
    names = [cluster.name for cluster in RecordStore(sandbox.home).clusters()]
    assert killed or not names, point
    for name in names:
        sandbox.run("down", name, "--yes")
    sandbox.check_empty(point, recorded=bool(names))
    assert all(run.ended_at or run.ranks == {} for run in RecordStore(sandbox.home).runs()), point


@pytest.mark.parametrize("point", ["CreateFleet#1 effect", "DeleteFleets#1 before"])
def test_down_after_train_killed_at_fleet_calls_leaves_nothing(real_node_pool, train_points, point):
    assert point in train_points.all
    kill_train_then_down(real_node_pool.sandboxes[0], point)


@pytest.mark.full
def test_down_after_train_killed_around_any_call_leaves_nothing(real_node_pool, train_points):
    real_node_pool.run_cases(train_points.calls, kill_train_then_down)


@pytest.mark.full
def test_down_after_train_killed_before_any_file_change_leaves_nothing(real_node_pool, train_points):
    real_node_pool.run_cases(train_points.files, kill_train_then_down)
