"""SIGKILL of `train` around its calls, on real nodes: `down` of the recorded clusters leaves nothing."""

import pytest

from cloudgpu.state.record_store import RecordStore

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(3600)]

TRAIN = ("train", "plain", "--yes")


@pytest.fixture(scope="module")
def trained(running):
    """Record the kill points of an uninterrupted `train`."""
    seen = running.sandboxes[0].record(*TRAIN)
    running.sandboxes[0].check_empty("undisturbed")
    assert seen.actions >= {"CreateFleet", "DeleteFleets"}
    return seen


def killed_and_ended(sandbox, place):
    killed = sandbox.kill_at(place, *TRAIN)
    names = [one.name for one in RecordStore(sandbox.home).clusters()]
    assert killed or not names, place
    for name in names:
        sandbox.run("down", name, "--yes")
    sandbox.check_empty(place, begun=bool(names))
    assert all(run.ended_at or run.ranks == {} for run in RecordStore(sandbox.home).runs()), place


@pytest.mark.main_path
@pytest.mark.parametrize("place", ["CreateFleet#1 effect", "DeleteFleets#1 before"])
def test_down_after_train_killed_at_fleet_calls_leaves_nothing(running, trained, place):
    assert place in trained.places
    killed_and_ended(running.sandboxes[0], place)


@pytest.mark.full
def test_down_after_train_killed_around_any_call_leaves_nothing(running, trained):
    running.each(trained.calls, killed_and_ended)


@pytest.mark.full
def test_down_after_train_killed_before_any_file_change_leaves_nothing(running, trained):
    running.each(trained.files, killed_and_ended)
