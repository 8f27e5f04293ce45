"""Global conditions of the simulated AWS: parsed from a script and counted by calls."""

from datetime import UTC, datetime, timedelta

import pytest

from cloudgpu.rehearsal.faults.api_faults import ActiveConditions, Conditions, SkewedClock, conditions_from
from tests.manual_clock import ManualClock

START = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.fixture
def clock():
    return ManualClock(START)


@pytest.fixture
def behaviour(clock):
    return ActiveConditions(clock)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"slowness": 1}, "unknown condition 'slowness'"),
        ({"unseen_calls": "two"}, "unseen_calls: 'two'"),
        ({"unseen_calls": True}, "unseen_calls: True"),
        ({"console_empty": 1}, "console_empty: 1"),
        ({"retired": "p4d.*"}, "retired: 'p4d.*'"),
        ({"free_addresses": {"*": -1}}, "free_addresses"),
    ],
)
def test_invalid_condition_is_rejected_by_name(row, words):
    with pytest.raises(ValueError, match="condition") as err:
        conditions_from(row)
    assert words in str(err.value)


def test_conditions_are_parsed_from_a_mapping():
    assert conditions_from({}) == Conditions()
    found = conditions_from({"retired": ["p4*"], "free_addresses": {"us-east-1*": 3, "*a": 1}, "calls_per_s": 2})
    assert (found.is_retired("p4d.24xlarge"), found.is_retired("p5.48xlarge")) == (True, False)
    assert [found.addresses_in(zone) for zone in ("us-east-1a", "us-east-1b", "eu-west-1b")] == [1, 3, None]


def test_new_resource_is_invisible_for_the_configured_calls(behaviour):
    behaviour.made("i-1")
    assert not behaviour.unseen("i-1")
    behaviour.put(Conditions(unseen_calls=2))
    behaviour.made("i-2")
    assert [behaviour.unseen("i-2") for _ in range(3)] == [True, True, False]
    assert not behaviour.unseen("i-1")


def test_only_profiles_newer_than_the_condition_are_unknown(behaviour, clock):
    behaviour.put(Conditions(profile_calls=1))
    assert not behaviour.is_profile_unknown("old", START - timedelta(seconds=1))
    assert [behaviour.is_profile_unknown("new", START) for _ in range(2)] == [True, False]


def test_console_is_empty_for_the_configured_reads_or_always(behaviour):
    assert not behaviour.is_console_empty("i-1")
    behaviour.put(Conditions(console_calls=2))
    assert [behaviour.is_console_empty("i-1") for _ in range(3)] == [True, True, False]
    assert behaviour.is_console_empty("i-2")
    behaviour.put(Conditions(console_empty=True))
    assert all(behaviour.is_console_empty("i-1") for _ in range(9))


def test_throttling_allows_a_burst_then_the_configured_rate(behaviour, clock):
    assert not any(behaviour.should_throttle("us-east-1") for _ in range(99))
    behaviour.put(Conditions(calls_per_s=2, burst=3))
    assert [behaviour.should_throttle("us-east-1") for _ in range(4)] == [False, False, False, True]
    assert not behaviour.should_throttle("us-west-2")
    clock.sleep(0.5)
    assert [behaviour.should_throttle("us-east-1") for _ in range(2)] == [False, True]
    clock.sleep(60)
    assert [behaviour.should_throttle("us-east-1") for _ in range(4)] == [False, False, False, True]


def test_clock_skew_affects_wall_time_but_not_monotonic_time(behaviour, clock):
    behaviour.put(Conditions(clock_skew_s=1200))
    skewed = SkewedClock(clock, behaviour)
    skewed.sleep(5)
    assert (skewed.now() - clock.now(), skewed.monotonic()) == (timedelta(minutes=20), clock.monotonic())


def test_new_resource_is_invisible_to_the_configured_launches_only(behaviour):
    behaviour.put(Conditions(unseen_launches=1))
    behaviour.made("sg-0123456789abcdef0")
    assert not behaviour.unseen("sg-0123456789abcdef0")
    assert behaviour.unseen_in_launch("sg-0123456789abcdef0")
    assert not behaviour.unseen_in_launch("sg-0123456789abcdef0")
    assert not behaviour.unseen_in_launch("sg-00000000000000000")
