"""The notice that AWS will interrupt this spot node, from the instance metadata service."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from .instance_metadata import read_metadata
from .untrusted_data import parse_json_object

_PATH = "/latest/meta-data/spot/instance-action"
_LONGEST_VALUE = 40
_EVERY_S = 5.0
"""Seconds between two looks for a notice, as AWS recommends: "Spot Instance interruption notices", EC2 User Guide."""


class SpotNotice:
    """The notice that AWS will interrupt this spot node, which a thread reads from the instance metadata service."""

    def __init__(self, every_s: float = _EVERY_S) -> None:
        self._every_s = every_s
        self._notice: dict[str, str] | None = None
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def take(self) -> dict[str, str] | None:
        """Return the notice if it was announced since the last call."""
        notice = self._notice
        if notice is not None:  # the thread may set it at any moment
            self._notice = None
        return notice

    def _watch(self) -> None:
        notice = None
        while notice is None:
            with suppress(OSError):  # the service is briefly unavailable at times
                notice = read_spot_notice()
            if notice is None:
                time.sleep(self._every_s)
        self._notice = notice


def read_spot_notice() -> dict[str, str] | None:
    """Return the notice that AWS will interrupt this spot node: `action` and `time`. None if there is none.

    A notice that cannot be understood has empty values: the node is still interrupted.
    """
    text = read_metadata(_PATH)
    return None if text is None else parse_spot_notice(text)


def parse_spot_notice(text: str) -> dict[str, str]:
    """Return the `action` and `time` of a notice, each empty if it is not a short string."""
    try:
        notice = parse_json_object(text)
    except ValueError:
        notice = {}
    values = {key: notice.get(key) for key in ("action", "time")}
    return {
        key: value if isinstance(value, str) and len(value) <= _LONGEST_VALUE else "" for key, value in values.items()
    }
