import json
import math
from datetime import UTC, datetime, timedelta

import pytest

from cloudgpu.rehearsal.simulated_time import SimulatedTime
from tests.manual_clock import ManualClock

START = datetime(2026, 11, 22, tzinfo=UTC)
DAY = 86400


@pytest.fixture
def time(tmp_path):
    return SimulatedTime(tmp_path / "time.json", ManualClock(START))


def test_time_advances_are_cumulative(time):
    time.advance(DAY)
    time.advance(-DAY / 2)
    assert time.now() == START + timedelta(hours=12)


@pytest.mark.parametrize("seconds", [8.64e18, 3651 * DAY, -3652 * DAY, math.inf, -math.inf, math.nan])
def test_out_of_range_advance_is_rejected_without_effect(time, seconds):
    time.advance(DAY)
    with pytest.raises(ValueError, match="at most 3650 days"):
        time.advance(seconds)
    assert time.now() == START + timedelta(days=1)


def test_advance_limit_applies_to_the_total(time):
    time.advance(3650 * DAY)
    with pytest.raises(ValueError, match="3650 days"):
        time.advance(1)
    time.advance(-2 * 3650 * DAY)


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "{}", '{"ahead_s": "1"}', '{"ahead_s": null}', '{"ahead_s": 8.64e18}', '{"ahead_s": NaN}',
     '{"ahead_s": 1e999}', '{"ahead_s": [1]}', "[" * 100_000, "\0"],
)  # fmt: skip
def test_invalid_time_file_is_moved_aside(time, text):
    time.path.write_text(text)
    assert time.now() == START
    assert not time.path.exists()
    assert time.path.with_suffix(".damaged").read_text() == text
    time.advance(60)
    assert json.loads(time.path.read_text()) == {"format": 1, "ahead_s": 60}
