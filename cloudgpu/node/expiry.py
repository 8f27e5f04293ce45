"""Extend the expiry timer of a node: the command, and how to read its output. Pure.

The script on the node comes with its user data (`infra/gpu_cluster/user_data.py`). It rejects times beyond `EXTENDABLE`
after the first expiry, writes the time to disk, arms the new timer, and only then removes the old one.
"""

import re
from datetime import datetime, timedelta
from typing import Final

from cloudgpu import bounds

EXTENDABLE: Final = timedelta(days=14)
"""How far beyond their first expiry nodes may be told to live: the same as in their user data."""

_RUN = 'exec sh "${CLOUDGPU_NODE_ROOT:-}/var/lib/cloudgpu/expiry" "$1"'
_ARMED = re.compile(r"^cloudgpu: this node ends itself at ([0-9]+)$", re.MULTILINE)


def extend(until: datetime) -> tuple[str, ...]:
    """Return the command that sets the time at which a node powers itself off."""
    return ("sudo", "-n", "sh", "-c", _RUN, "extend", str(int(until.timestamp())))


def armed(answer: str) -> datetime | None:
    """Return the time the node confirmed, UTC, or None if it confirmed none."""
    found = _ARMED.findall(answer)
    try:
        return bounds.epoch(found[-1]) if found else None
    except ValueError:
        return None  # a node that names no time of our calendar has not taken the new expiry
