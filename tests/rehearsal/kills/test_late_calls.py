"""A call outlives its caller: it takes effect after `down` has started to search, and is visible later still."""

import time

import pytest

from cloudgpu.rehearsal import client

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(3600)]

UP = ("up", "plain", "--yes")
DOWN = ("down", "plain")
LATE_S, LATE_LAUNCH_S, LAG_S = 50, 170, 15
_LIMIT_S = 60


def made_by(upped):
    """Return every call that creates or completes something, as (action, nth)."""
    sent = [place.removesuffix(" before").split("#") for place in upped.around_changes if place.endswith(" before")]
    return [(action, int(nth)) for action, nth in sent]


def struck(sandbox):
    return any(row["fired"] for row in client.faults(sandbox.workspace.cloud)["rules"] if row["do"] == "delay")


def until(holds, command=None):
    deadline = time.monotonic() + _LIMIT_S
    while not holds():
        assert command is None or not command.over, command.shown()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def killed_under_way(sandbox, call):
    """Kill `up` while the endpoint has received its call but not carried it out."""
    action, nth = call
    late_s = LATE_LAUNCH_S if action == "CreateFleet" else LATE_S
    sandbox.bring("empty")
    rules = [
        {"action": action, "nth": nth, "do": "delay", "seconds": late_s},
        {"action": "Describe*", "do": "lag", "seconds": LAG_S},
    ]
    client.put_faults(sandbox.workspace.cloud, rules)
    command = sandbox.start(*UP, still=True)
    until(lambda: struck(sandbox), command)
    command.kill()
    assert sandbox.under_way() > 0, call


def test_down_waits_for_every_call_that_may_still_take_effect(sandbox_pool, upped):
    def case(sandbox, call):
        killed_under_way(sandbox, call)
        told = sandbox.start(*DOWN)
        assert told.wait() == 0, told.shown()
        sandbox.land()
        sandbox.check_empty(f"{call}\n{told.shown()}")

    sandbox_pool.each(made_by(upped), case)


def test_down_reports_and_limits_its_wait_for_a_lost_launch(sandbox):
    """The launch was never sent: `down` says what it waits for, and until when."""
    sandbox.kill_at("CreateFleet#1 before", *UP)
    told = sandbox.start(*DOWN)
    assert told.wait() == 0, told.shown()
    shown = told.files["out"].read_text()
    assert "waiting for EC2 fleet" in shown, told.shown()
    assert "its create call received no response; the resource may still appear until" in shown, told.shown()
    assert 180 < sandbox.ahead_s < 260
    sandbox.check_empty("never came")


@pytest.mark.full
def test_repeated_up_during_a_late_call_creates_a_single_cluster(sandbox_pool, upped):
    def case(sandbox, call):
        killed_under_way(sandbox, call)
        sandbox.run(*UP)
        sandbox.land()
        left = sandbox.left()
        assert len(left["instances"]) == 2, call
        assert {kind: len(rows) for kind, rows in left.items()} == whole, call
        sandbox.run(*DOWN)
        sandbox.check_empty(call)

    sandbox_pool.sandboxes[0].bring("standing")
    whole = {kind: len(rows) for kind, rows in sandbox_pool.sandboxes[0].left().items()}
    sandbox_pool.each(made_by(upped), case)
