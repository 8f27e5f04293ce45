"""Build the command that extends a node's expiry, and parse its output.

The command runs a script that the node's user data (`infra/gpu_cluster/user_data.py`) installs. The script rejects
times before the original expiry or more than `EXTENDABLE` after it. The script writes the new time to disk, arms a
timer for it, and only then stops the old timer.
"""

import re
from datetime import datetime, timedelta
from typing import Final

from cloudgpu import bounds

EXTENDABLE: Final = timedelta(days=14)
"""Maximum extension beyond a node's original expiry. It must equal the limit in the user data script."""

_RUN = 'exec sh "${CLOUDGPU_NODE_ROOT:-}/var/lib/cloudgpu/expiry" "$1"'
_ARMED = re.compile(r"^cloudgpu: this node ends itself at ([0-9]+)$", re.MULTILINE)


def extend_command(until: datetime) -> tuple[str, ...]:
    """Return the command that sets the time at which a node powers itself off."""
    return ("sudo", "-n", "sh", "-c", _RUN, "extend", str(int(until.timestamp())))


def confirmed_expiry(answer: str) -> datetime | None:
    """Return the expiry that a node's output confirms, in UTC, or None if the output confirms no expiry."""
    times = _ARMED.findall(answer)
    try:
        return bounds.parse_epoch(times[-1]) if times else None
    except ValueError:
        return None  # the printed time is out of range, so it confirms nothing
