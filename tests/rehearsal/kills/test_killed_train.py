"""SIGKILL of `train` around its calls, on nodes that really run: `down` of what is recorded leaves nothing."""

import pytest

from cloudgpu.state.cluster_and_run_records import RecordStore

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(3600)]

TRAIN = ("train", "plain", "--yes")


@pytest.fixture(scope="module")
def trained(running):
    """Where an undisturbed `train` goes."""
    seen = running.sandboxes[0].record(*TRAIN)
    running.sandboxes[0].check_empty("undisturbed")
    assert seen.actions >= {"CreateFleet", "DeleteFleets"}
    return seen


def killed_and_ended(sandbox, place):
    killed = sandbox.kill_at(place, *TRAIN)
    names = [one.name for one in RecordStore(sandbox.home).clusters()]
    assert killed or not names, place
    for name in names:
        sandbox.run("down", name)
    sandbox.check_empty(place, begun=bool(names))
    assert all(run.ended_at or run.ranks == {} for run in RecordStore(sandbox.home).runs()), place


@pytest.mark.main_path
@pytest.mark.parametrize("place", ["CreateFleet#1 effect", "DeleteFleets#1 before"])
def test_the_dearest_moments(running, trained, place):
    assert place in trained.places
    killed_and_ended(running.sandboxes[0], place)


@pytest.mark.full
def test_down_after_a_kill_around_every_call_leaves_nothing(running, trained):
    running.each(trained.calls, killed_and_ended)


@pytest.mark.full
def test_down_after_a_kill_before_every_change_of_a_file_leaves_nothing(running, trained):
    running.each(trained.files, killed_and_ended)
