"""A cluster that another process is deleting: its run is cancelled, and the deletion is awaited or taken over."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from cloudgpu.app.runs.concurrency import cancelled_by_deletion, delete_or_wait
from cloudgpu.engine.lease import ClusterLease
from cloudgpu.errors import AuthError, BusyError, CloudGpuError, TeardownError
from cloudgpu.state.run_records import RunRecord
from tests.manual_clock import ManualClock


@pytest.fixture
def ending(workspace, make):
    """A cluster that is being deleted."""
    record = workspace.provisioning.create(make.plan(make.candidate()), "demo").record
    return workspace.records.save_cluster(record.in_state("ending"), workspace.clock.now())


def lease(workspace):
    return ClusterLease(workspace.home.cluster("demo").root / "lease", workspace.clock, "bob").hold(tidy=True)


def destroyed(workspace):
    return [call for call in workspace.cloud.calls if call[0] == "destroy"]


def after_a_while(workspace, monkeypatch, happens):
    """Call a function during the third wait."""
    real, waits = ManualClock.sleep, []

    def sleep(clock, seconds):
        waits.append(seconds)
        if len(waits) == 3:
            happens()
        real(clock, seconds)

    monkeypatch.setattr(ManualClock, "sleep", sleep)


def test_waiter_accepts_the_other_process_confirmed_deletion(workspace, ending, monkeypatch):
    after_a_while(workspace, monkeypatch, lambda: workspace.records.forget_cluster("demo"))
    with lease(workspace):
        delete_or_wait(workspace.context, ending)
    assert destroyed(workspace) == []
    assert [note for note in workspace.notes if "waiting until that process has deleted the cluster" in note]


def test_waiter_takes_over_deletion_when_other_process_dies(workspace, ending, monkeypatch):
    held = lease(workspace)
    held.__enter__()
    after_a_while(workspace, monkeypatch, lambda: held.__exit__(None, None, None))
    delete_or_wait(workspace.context, ending)
    assert len(destroyed(workspace)) == 1
    assert workspace.records.cluster("demo") is None


def test_lease_held_for_another_operation_raises_busy_error(workspace, ending):
    running = workspace.records.save_cluster(ending.in_state("up"), workspace.clock.now())
    with lease(workspace), pytest.raises(BusyError):
        delete_or_wait(workspace.context, running)


def test_waiting_for_another_deletion_times_out(workspace, ending):
    began = workspace.clock.monotonic()
    with lease(workspace), pytest.raises(BusyError):
        delete_or_wait(workspace.context, ending)
    assert workspace.clock.monotonic() - began >= 1200


def expired():
    err = AuthError("credentials expired", code="ExpiredToken", hint="aws sso login --profile gpu")
    err.renewable = True
    return err


def in_one_region():
    err = TeardownError("cluster demo is not confirmed deleted", hint="run `cloudgpu down demo` again")
    err.__cause__ = expired()
    return err


@pytest.fixture
def failing(workspace, monkeypatch):
    """Let the cluster's deletion fail with these errors, in this order, before it succeeds."""

    def fail(*errors):
        rest, real = list(errors), workspace.context.clusters.delete

        def delete(clusters, name, region):
            if rest:
                raise rest.pop(0)
            return real(name, region)

        monkeypatch.setattr(type(workspace.context.clusters), "delete", delete)

    return fail


@pytest.mark.parametrize("error", [expired, in_one_region])
def test_deletion_waits_for_new_credentials(workspace, ending, failing, error):
    failing(*(error() for _ in range(9)))
    before = workspace.clock.now()
    delete_or_wait(workspace.context, ending)
    assert workspace.records.cluster("demo") is None
    assert workspace.clock.now() > before
    until = f"{ending.lifecycle.expires_at:%Y-%m-%d %H:%M} UTC"
    assert [note for note in workspace.notes if "credentials" in note] == [
        "credentials expired; the nodes are not affected",
        f"waiting for new credentials until {until}: aws sso login --profile gpu",
        "the new credentials are valid; continuing",
    ]


def test_deletion_waits_for_credentials_only_until_the_nodes_end(workspace, ending, failing):
    failing(*(expired() for _ in range(1000)))
    with pytest.raises(AuthError):
        delete_or_wait(workspace.context, ending)
    late = workspace.clock.now() - ending.lifecycle.expires_at
    assert timedelta(0) <= late < timedelta(minutes=1)


@pytest.mark.parametrize("error", [AuthError("denied", code="AccessDenied"), TeardownError("left", left=["i-1"])])
def test_deletion_does_not_wait_if_new_credentials_would_not_help(workspace, ending, failing, error):
    failing(error)
    before = workspace.clock.now()
    with pytest.raises(CloudGpuError):
        delete_or_wait(workspace.context, ending)
    assert workspace.clock.now() == before


AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
LOST = {"state": "lost", "reason": "node 0 is gone", "ranks": {"0": (0,)}}
RUN = RunRecord("r-1", "demo", "plain", "recipe.yaml", "ann", "vision", "rehearsal", AT, **LOST)


@pytest.mark.parametrize("change", [{}, {"state": "failed"}])
def test_run_that_lost_its_nodes_to_down_is_cancelled(ending, change):
    found = cancelled_by_deletion(replace(RUN, **change), ending)
    assert (found.state, found.reason) == ("cancelled", "its cluster was deleted")
    assert cancelled_by_deletion(replace(RUN, **change), None) == found


@pytest.mark.parametrize("change", [{"state": "failed", "failed_rank": 1}, {"state": "succeeded"}])
def test_finished_run_keeps_its_state_after_cluster_deletion(ending, change):
    run = replace(RUN, **change)
    assert cancelled_by_deletion(run, ending) == run


def test_run_that_lost_nodes_of_a_running_cluster_stays_lost(ending):
    assert cancelled_by_deletion(RUN, ending.in_state("up")) == RUN
