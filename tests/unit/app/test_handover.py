"""A cluster that another process ends: its run was cancelled, and its end is awaited or taken over."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from cloudgpu.app.handover import end_or_wait, taken_away
from cloudgpu.app.records import RunRecord
from cloudgpu.clock import ManualClock
from cloudgpu.errors import BusyError
from cloudgpu.provision.lease import Lease


@pytest.fixture
def ending(bench, make):
    """A cluster that somebody is ending."""
    record = bench.provisioning.up(make.plan(make.candidate()), "demo").record
    return bench.records.save_cluster(replace(record, state="ending"), bench.clock.now())


def lease(bench):
    return Lease(bench.home.cluster("demo").root / "lease", bench.clock, "bob").hold(tidy=True)


def destroyed(bench):
    return [call for call in bench.cloud.calls if call[0] == "destroy"]


def after_a_while(bench, monkeypatch, happens):
    """It happens while we wait for the third time."""
    real, waits = ManualClock.sleep, []

    def sleep(clock, seconds):
        waits.append(seconds)
        if len(waits) == 3:
            happens()
        real(clock, seconds)

    monkeypatch.setattr(ManualClock, "sleep", sleep)


def test_the_others_confirmation_is_enough(bench, ending, monkeypatch):
    after_a_while(bench, monkeypatch, lambda: bench.records.forget_cluster("demo"))
    with lease(bench):
        end_or_wait(bench.desk, bench.teardown, ending)
    assert destroyed(bench) == []
    assert [note for note in bench.notes if "waiting for its confirmation" in note]


def test_who_waited_goes_on_where_the_other_died(bench, ending, monkeypatch):
    held = lease(bench)
    held.__enter__()
    after_a_while(bench, monkeypatch, lambda: held.__exit__(None, None, None))
    end_or_wait(bench.desk, bench.teardown, ending)
    assert len(destroyed(bench)) == 1
    assert bench.records.cluster("demo") is None


def test_who_is_at_it_for_another_reason_is_not_waited_for(bench, ending):
    standing = bench.records.save_cluster(replace(ending, state="up"), bench.clock.now())
    with lease(bench), pytest.raises(BusyError):
        end_or_wait(bench.desk, bench.teardown, standing)


def test_nobody_is_waited_for_without_end(bench, ending):
    began = bench.clock.monotonic()
    with lease(bench), pytest.raises(BusyError):
        end_or_wait(bench.desk, bench.teardown, ending)
    assert bench.clock.monotonic() - began >= 1200


AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
LOST = {"state": "lost", "reason": "node 0 is gone", "ranks": {"0": (0,)}}
RUN = RunRecord("r-1", "demo", "plain", "recipe.yaml", "ann", "vision", "rehearsal", AT, **LOST)


@pytest.mark.parametrize("change", [{}, {"state": "failed"}])
def test_a_run_that_lost_its_nodes_to_a_down_was_cancelled(ending, change):
    found = taken_away(replace(RUN, **change), ending)
    assert (found.state, found.reason) == ("cancelled", "its cluster was ended")
    assert taken_away(replace(RUN, **change), None) == found


@pytest.mark.parametrize("change", [{"state": "failed", "failed_rank": 1}, {"state": "succeeded"}])
def test_a_verdict_of_its_own_stays(ending, change):
    run = replace(RUN, **change)
    assert taken_away(run, ending) == run


def test_a_run_that_lost_its_nodes_by_itself_is_lost(ending):
    assert taken_away(RUN, replace(ending, state="up")) == RUN
