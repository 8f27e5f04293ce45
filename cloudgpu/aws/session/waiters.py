"""Retry calls, and poll until a condition is met, with a time limit and an injected clock."""

from collections.abc import Callable
from typing import TypeVar

from cloudgpu.clock import Clock
from cloudgpu.errors import CloudError, CloudGpuError, ThrottledError

T = TypeVar("T")

_FIRST_S = 0.25
_LONGEST_S = 10.0
_GROWTH = 1.4


def retry(clock: Clock, call: Callable[[], T], *, when: Callable[[CloudGpuError], bool], total_s: float) -> T:
    """Make a call. For up to `total_s` seconds, retry after errors that `when` accepts, with increasing delays."""
    pause_s, deadline = _FIRST_S, clock.monotonic() + total_s
    while True:
        try:
            return call()
        except CloudGpuError as err:
            if not when(err) or clock.monotonic() + pause_s > deadline:
                raise
        clock.sleep(pause_s)
        pause_s = min(_LONGEST_S, pause_s * _GROWTH)


def poll(clock: Clock, look: Callable[[], T | None], *, what: str, total_s: float) -> T:
    """Poll with increasing delays until `look` returns a value."""
    pause_s, deadline = _FIRST_S, clock.monotonic() + total_s
    while True:
        value = look()
        if value is not None:
            return value
        if clock.monotonic() + pause_s > deadline:
            message = f"timed out after {total_s:.0f} s waiting for {what}"
            raise CloudError(message, code="TimedOut", hint="run the same command again")
        clock.sleep(pause_s)
        pause_s = min(_LONGEST_S, pause_s * _GROWTH)


def is_throttled(err: CloudGpuError) -> bool:
    """Return True if the call was throttled or the service failed temporarily, so that it can be repeated unchanged."""
    return isinstance(err, ThrottledError)
