"""Hold one reader against one lie: bounded in time and memory, whatever comes."""

import resource
import threading
from collections.abc import Callable
from typing import Any

LONGEST_S = 20.0
"""Bound of one reader with the short patience that tests give it; a lie that is not noticed lasts for minutes."""
MOST_KIB = 160 * 1024
"""Bound of what a reader may hold in memory; an endless body here is 256 MiB."""


def outcome(call: Callable[[], Any]) -> Any:
    """Return what `call` returned, or the exception that it raised; fail when it takes too long or too much."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as err:  # noqa: BLE001 - the test decides which ones are typed
            found.append(err)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LONGEST_S)
    assert found, f"no end within {LONGEST_S:g} s"
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < MOST_KIB, f"{grown} KiB were held"
    return found[0]
