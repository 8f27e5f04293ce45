"""The time that a resource may take to appear after an interrupted create call."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

RETRY_PERIOD: Final = timedelta(minutes=10)
"""Maximum time from recording an intent to the last attempt at its call; throttled calls are retried."""


@dataclass(frozen=True)
class Delays:
    """Delays to assume for a cloud, in seconds.

    Attributes:
        landing_s: Time during which a call may still take effect after its caller was killed.
        launch_s: Like `landing_s`, but for a launch, which returns only after all instances are placed.
        showing_s: Time until a tag search finds a new resource.
    """

    landing_s: float
    launch_s: float
    showing_s: float


AWS_DELAYS: Final = Delays(landing_s=60.0, launch_s=180.0, showing_s=20.0)
"""Delays for real AWS, based on the calls' time limits and on the time until EC2 lists a new resource."""

OTHER_ENDPOINT_DELAYS: Final = Delays(landing_s=1.0, launch_s=1.0, showing_s=1.0)
"""Delays for other endpoints, such as the rehearsal cloud, which lists new resources immediately."""


def delays_at(endpoint: str) -> Delays:
    """Return the delays to assume for the cloud at this endpoint. An empty endpoint means real AWS."""
    return OTHER_ENDPOINT_DELAYS if endpoint else AWS_DELAYS


def launch_visible_by(recorded_at: datetime, now: datetime, delays: Delays) -> datetime:
    """Return the time by which a tag search must find the nodes of a launch whose caller has exited.

    Args:
        recorded_at: Time at which the launch was recorded, before its call was sent.
        now: Time at which the caller is known to have exited.
        delays: Delays to assume for the cloud.
    """
    return min(recorded_at + RETRY_PERIOD, now) + timedelta(seconds=delays.launch_s + delays.showing_s)
