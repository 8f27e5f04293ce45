"""A cluster that another process ends: its run was cancelled, and its end is awaited or taken over."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from cloudgpu.app.runs.ownership import cancelled_by_deletion, delete_or_wait
from cloudgpu.clock import ManualClock
from cloudgpu.engine.lease import ClusterLease
from cloudgpu.errors import BusyError
from cloudgpu.state.cluster_and_run_records import RunRecord


@pytest.fixture
def ending(workspace, make):
    """A cluster that somebody is ending."""
    record = workspace.provisioning.up(make.plan(make.candidate()), "demo").record
    return workspace.records.save_cluster(replace(record, state="ending"), workspace.clock.now())


def lease(workspace):
    return ClusterLease(workspace.home.cluster("demo").root / "lease", workspace.clock, "bob").hold(tidy=True)


def destroyed(workspace):
    return [call for call in workspace.cloud.calls if call[0] == "destroy"]


def after_a_while(workspace, monkeypatch, happens):
    """It happens while we wait for the third time."""
    real, waits = ManualClock.sleep, []

    def sleep(clock, seconds):
        waits.append(seconds)
        if len(waits) == 3:
            happens()
        real(clock, seconds)

    monkeypatch.setattr(ManualClock, "sleep", sleep)


def test_the_others_confirmation_is_enough(workspace, ending, monkeypatch):
    after_a_while(workspace, monkeypatch, lambda: workspace.records.forget_cluster("demo"))
    with lease(workspace):
        delete_or_wait(workspace.context, ending)
    assert destroyed(workspace) == []
    assert [note for note in workspace.notes if "waiting until that process has deleted the cluster" in note]


def test_who_waited_goes_on_where_the_other_died(workspace, ending, monkeypatch):
    held = lease(workspace)
    held.__enter__()
    after_a_while(workspace, monkeypatch, lambda: held.__exit__(None, None, None))
    delete_or_wait(workspace.context, ending)
    assert len(destroyed(workspace)) == 1
    assert workspace.records.cluster("demo") is None


def test_who_is_at_it_for_another_reason_is_not_waited_for(workspace, ending):
    standing = workspace.records.save_cluster(replace(ending, state="up"), workspace.clock.now())
    with lease(workspace), pytest.raises(BusyError):
        delete_or_wait(workspace.context, standing)


def test_nobody_is_waited_for_without_end(workspace, ending):
    began = workspace.clock.monotonic()
    with lease(workspace), pytest.raises(BusyError):
        delete_or_wait(workspace.context, ending)
    assert workspace.clock.monotonic() - began >= 1200


AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
LOST = {"state": "lost", "reason": "node 0 is gone", "ranks": {"0": (0,)}}
RUN = RunRecord("r-1", "demo", "plain", "recipe.yaml", "ann", "vision", "rehearsal", AT, **LOST)


@pytest.mark.parametrize("change", [{}, {"state": "failed"}])
def test_a_run_that_lost_its_nodes_to_a_down_was_cancelled(ending, change):
    found = cancelled_by_deletion(replace(RUN, **change), ending)
    assert (found.state, found.reason) == ("cancelled", "its cluster was deleted")
    assert cancelled_by_deletion(replace(RUN, **change), None) == found


@pytest.mark.parametrize("change", [{"state": "failed", "failed_rank": 1}, {"state": "succeeded"}])
def test_a_verdict_of_its_own_stays(ending, change):
    run = replace(RUN, **change)
    assert cancelled_by_deletion(run, ending) == run


def test_a_run_that_lost_its_nodes_by_itself_is_lost(ending):
    assert cancelled_by_deletion(RUN, replace(ending, state="up")) == RUN
