"""A call outlives its caller: it takes effect after `down` has started to search, and becomes visible even later."""

import time

import pytest

from cloudgpu.rehearsal import client

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(3600)]

UP = ("up", "plain", "--yes")
DOWN = ("down", "plain")
LATE_S, LATE_LAUNCH_S, LAG_S = 50, 170, 15
_LIMIT_S = 60


def mutating_calls(up_points):
    """Return every call that creates or changes a resource, as (action, nth)."""
    sent = [point.removesuffix(" before").split("#") for point in up_points.around_changes if point.endswith(" before")]
    return [(action, int(nth)) for action, nth in sent]


def delay_fired(sandbox):
    return any(row["fired"] for row in client.faults(sandbox.workspace.cloud)["rules"] if row["do"] == "delay")


def wait_until(condition, command=None):
    deadline = time.monotonic() + _LIMIT_S
    while not condition():
        assert command is None or not command.exited, command.output()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def kill_during_call(sandbox, call):
    """Kill `up` after the endpoint has received a call and before the call takes effect."""
    action, nth = call
    late_s = LATE_LAUNCH_S if action == "CreateFleet" else LATE_S
    sandbox.restore("empty")
    rules = [
        {"action": action, "nth": nth, "do": "delay", "seconds": late_s},
        {"action": "Describe*", "do": "lag", "seconds": LAG_S},
    ]
    client.put_faults(sandbox.workspace.cloud, rules)
    command = sandbox.start(*UP, freeze_clock=True)
    wait_until(lambda: delay_fired(sandbox), command)
    command.kill()
    assert sandbox.pending_calls() > 0, call


def test_down_waits_for_every_call_that_may_still_take_effect(sandbox_pool, up_points):
    def case(sandbox, call):
        kill_during_call(sandbox, call)
        command = sandbox.start(*DOWN)
        assert command.wait() == 0, command.output()
        sandbox.finish_pending_calls()
        sandbox.check_empty(f"{call}\n{command.output()}")

    sandbox_pool.run_cases(mutating_calls(up_points), case)


def test_down_reports_and_limits_its_wait_for_a_lost_launch(sandbox):
    """If the launch was never sent, `down` reports what it waits for and until when."""
    sandbox.kill_at("CreateFleet#1 before", *UP)
    command = sandbox.start(*DOWN)
    assert command.wait() == 0, command.output()
    output = command.files["out"].read_text()
    assert "waiting for EC2 fleet" in output, command.output()
    assert "its create call received no response; the resource may still appear until" in output, command.output()
    assert 180 < sandbox.clock_offset_s < 260
    sandbox.check_empty("never sent")


@pytest.mark.full
def test_repeated_up_during_a_late_call_creates_a_single_cluster(sandbox_pool, up_points):
    def case(sandbox, call):
        kill_during_call(sandbox, call)
        sandbox.run(*UP)
        sandbox.finish_pending_calls()
        resources = sandbox.remaining_resources()
        assert len(resources["instances"]) == 2, call
        assert {kind: len(rows) for kind, rows in resources.items()} == complete, call
        sandbox.run(*DOWN)
        sandbox.check_empty(call)

    sandbox_pool.sandboxes[0].restore("cluster")
    complete = {kind: len(rows) for kind, rows in sandbox_pool.sandboxes[0].remaining_resources().items()}
    sandbox_pool.run_cases(mutating_calls(up_points), case)
