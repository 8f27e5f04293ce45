"""AWS's time from the `Date` header of its responses."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from cloudgpu.aws.session.session import ServerTime
from tests.manual_clock import ManualClock

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.mark.parametrize("ahead_s", [-86_400, -200, -5, 0, 1, 5, 200, 86_400])
def test_time_follows_the_header(ahead_s):
    clock = ManualClock(NOON)
    time = ServerTime(clock)
    assert time.now() == NOON
    time.update(format_datetime(NOON + timedelta(seconds=ahead_s), usegmt=True))
    clock.sleep(100)
    expected = NOON + timedelta(seconds=100 + (ahead_s if abs(ahead_s) > 2 else 0))
    assert abs((time.now() - expected).total_seconds()) <= 1
    assert bool(time.ahead()) is (abs(ahead_s) > 2)


@pytest.mark.parametrize(
    "date",
    [
        "",
        "yesterday",
        "Sat, 21 Nov 9999 12:00:00 GMT",
        "Sat, 21 Nov 2026 12:00:00",
        "Sat, 99 Nov 2026 99:00:00 GMT",
        "\0",
    ],
)
def test_unusable_header_changes_nothing(date):
    time = ServerTime(ManualClock(NOON))
    time.update(date)
    assert (time.now(), time.ahead()) == (NOON, timedelta(0))


@pytest.mark.parametrize(("ahead_s", "side"), [(-200, "200 s ahead of"), (-5, ""), (5, ""), (200, "200 s behind")])
def test_noticeable_difference_is_reported_once(ahead_s, side):
    time = ServerTime(ManualClock(NOON))
    time.update(format_datetime(NOON + timedelta(seconds=ahead_s), usegmt=True))
    first, second = time.difference_to_report(), time.difference_to_report()
    assert second == ""
    assert first.startswith(f"this machine's clock is {side} the cloud's;" if side else "")
    assert bool(first) is bool(side)


def test_corrected_clock_is_noticed_at_the_next_response():
    clock = ManualClock(NOON)
    time = ServerTime(clock)
    time.update("Sat, 21 Nov 2026 12:03:20 GMT")
    assert time.ahead() > timedelta(seconds=199)
    clock.sleep(200)
    time.update("Sat, 21 Nov 2026 12:03:20 GMT")
    assert time.ahead() == timedelta(0)
