"""The clock of one operation: it reports waits, and under the Pulumi CLI it enforces `custom_timeouts`."""

from datetime import UTC, datetime

import pytest

from cloudgpu.engine.direct.deployment import WatchedClock
from cloudgpu.errors import CloudError
from tests.manual_clock import ManualClock


def watched(waits, timeout_s=None):
    clock = ManualClock(datetime(2026, 11, 21, tzinfo=UTC))
    return WatchedClock(clock, what="create of a", on_wait=waits.append, timeout_s=timeout_s)


def test_waits_are_reported_every_five_seconds_with_elapsed_time():
    waits = []
    clock = watched(waits)
    for _ in range(20):
        clock.sleep(2)
    assert waits == [6, 12, 18, 24, 30, 36]


def test_operation_fails_at_timeout():
    clock = watched([], timeout_s=90)
    for _ in range(9):
        clock.sleep(10)
    with pytest.raises(CloudError, match=r"create of a took longer than its timeout of 90 s") as caught:
        clock.sleep(10)
    assert caught.value.code == "Timeout"
    assert clock.elapsed() == 90
