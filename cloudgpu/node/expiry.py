"""How a node is told to end itself later: the command, and what its answer means. Pure.

The text that the node runs came with its user data (`infra/gpu_cluster/user_data.py`). It takes no moment that lies
further from the node's first expiry than `EXTENDABLE`, writes it to the disk, arms a timer for it, and only then takes
the old timer away.
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
    """The arguments of the command that tells a node to end itself then."""
    return ("sudo", "-n", "sh", "-c", _RUN, "extend", str(int(until.timestamp())))


def armed(answer: str) -> datetime | None:
    """The moment that the node says it will end itself at, UTC; None where it says none."""
    found = _ARMED.findall(answer)
    try:
        return bounds.epoch(found[-1]) if found else None
    except ValueError:
        return None  # a node that names no time of our calendar has not taken the new expiry
