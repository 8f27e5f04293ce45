"""Wait for the termination of instances: the largest types shut down for up to an hour, which is not billed."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from cloudgpu.aws.ec2 import instances
from cloudgpu.aws.ec2.instances import Instance, terminate
from cloudgpu.errors import CloudError
from tests.manual_clock import ManualClock

START = datetime(2026, 11, 21, tzinfo=UTC)


def waited_s(monkeypatch, states):
    """Terminate two instances whose states change at these times; return how long the call waited."""
    clock = ManualClock(START)
    terminated = []

    def find(_clients, filters):
        now = clock.monotonic()
        found = []
        for index, changes in enumerate(states):
            state = next(state for since, state in reversed(changes) if since <= now)
            if state in filters["instance-state-name"]:
                found.append(Instance(f"i-{index}", "p5", "a", state, "", "", START, {}, ""))
        return tuple(found)

    client = SimpleNamespace(terminate_instances=lambda **request: terminated.append(request["InstanceIds"]))
    monkeypatch.setattr(instances, "find_instances", find)
    terminate(SimpleNamespace(client=lambda _: client), clock, ["i-0", "i-1"])
    assert terminated in ([], [["i-0", "i-1"]])
    return clock.monotonic()


def test_instances_may_shut_down_for_an_hour(monkeypatch):
    fast = [(0, "running"), (1, "shutting-down"), (30, "terminated")]
    slow = [(0, "running"), (20, "shutting-down"), (3500, "terminated")]
    assert 3500 <= waited_s(monkeypatch, [fast, slow]) <= 3520


def test_shutdown_of_more_than_an_hour_ends_the_wait(monkeypatch):
    slow = [(0, "shutting-down")]
    with pytest.raises(CloudError, match="timed out after 3600 s waiting for 2 instances to terminate"):
        waited_s(monkeypatch, [slow, slow])


def test_instances_that_are_still_billed_have_the_shorter_limit(monkeypatch):
    with pytest.raises(CloudError, match="timed out after 900 s waiting for 2 instances to shut down"):
        waited_s(monkeypatch, [[(0, "running")], [(0, "running"), (5, "shutting-down")]])
