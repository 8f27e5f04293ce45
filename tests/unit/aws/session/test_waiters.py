from itertools import pairwise

import pytest

from cloudgpu.aws.session.waiters import is_throttled, poll, retry
from cloudgpu.clock import ManualClock
from cloudgpu.errors import BadRequestError, CloudError, ThrottledError


def test_retried_until_it_works(clock: ManualClock) -> None:
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


def test_retried_gives_up_in_time(clock: ManualClock) -> None:
    def call() -> None:
        raise ThrottledError("slow")

    with pytest.raises(ThrottledError):
        retry(clock, call, when=is_throttled, total_s=60)
    assert 50 <= clock.monotonic() <= 60


def test_retried_stops_at_another_error(clock: ManualClock) -> None:
    def call() -> None:
        raise BadRequestError("no")

    with pytest.raises(BadRequestError):
        retry(clock, call, when=is_throttled, total_s=60)
    assert clock.monotonic() == 0


def test_awaited_sees_what_appears(clock: ManualClock) -> None:
    assert poll(clock, lambda: "there" if clock.monotonic() > 5 else None, what="it", total_s=60) == "there"


def test_awaited_names_what_did_not_come(clock: ManualClock) -> None:
    with pytest.raises(CloudError, match=r"timed out after .* s waiting for the bus") as caught:
        poll(clock, lambda: None, what="the bus", total_s=30)
    assert caught.value.code == "TimedOut"
    assert clock.monotonic() <= 30
