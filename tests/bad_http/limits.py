"""Time and memory limits for an HTTP client that reads from a misbehaving server."""

import resource
import threading
from collections.abc import Callable
from typing import Any

TIME_LIMIT_S = 20.0
"""Limit for one client with the short timeouts of the tests. Without a timeout, a slow response takes minutes."""
MEMORY_LIMIT_KIB = 160 * 1024
"""Limit for one client. An endless body is 256 MiB here."""


def call_within_limits(call: Callable[[], Any]) -> Any:
    """Return the result of a call or the exception that it raised. Fail if it exceeds the time or memory limit."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as err:  # noqa: BLE001 - the test decides which ones are typed
            results.append(err)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(TIME_LIMIT_S)
    assert results, f"not finished within {TIME_LIMIT_S:g} s"
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < MEMORY_LIMIT_KIB, f"memory use grew by {grown} KiB"
    return results[0]
