from itertools import pairwise

import pytest

from cloudgpu.aws.session.eventual_consistency import is_throttled, poll, retry
from cloudgpu.errors import BadRequestError, CloudError, ThrottledError
from tests.manual_clock import ManualClock


def test_retry_backs_off_until_success(clock: ManualClock) -> None:
    calls: list[float] = []

    def call() -> str:
        calls.append(clock.monotonic())
        if len(calls) < 4:
            raise ThrottledError("slow")
        return "done"

    assert retry(clock, call, when=is_throttled, total_s=60) == "done"
    pauses = [later - earlier for earlier, later in pairwise(calls)]
    assert pauses == sorted(pauses)
    assert pauses[0] > 0


def test_retry_gives_up_at_total_timeout(clock: ManualClock) -> None:
    def call() -> None:
        raise ThrottledError("slow")

    with pytest.raises(ThrottledError):
        retry(clock, call, when=is_throttled, total_s=60)
    assert 50 <= clock.monotonic() <= 60


def test_retry_stops_at_other_error(clock: ManualClock) -> None:
    def call() -> None:
        raise BadRequestError("no")

    with pytest.raises(BadRequestError):
        retry(clock, call, when=is_throttled, total_s=60)
    assert clock.monotonic() == 0


def test_poll_returns_first_result(clock: ManualClock) -> None:
    assert poll(clock, lambda: "there" if clock.monotonic() > 5 else None, what="it", total_s=60) == "there"


def test_poll_timeout_names_awaited_resource(clock: ManualClock) -> None:
    with pytest.raises(CloudError, match=r"timed out after .* s waiting for the bus") as caught:
        poll(clock, lambda: None, what="the bus", total_s=30)
    assert caught.value.code == "TimedOut"
    assert clock.monotonic() <= 30
