"""How long a cloud may take until it shows what a call made, when nobody saw the call answered."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

SENT_AGAIN: Final = timedelta(minutes=10)
"""How long after its intent a call may have been sent for the last time: throttled ones are sent again and again."""


@dataclass(frozen=True)
class Delays:
    """How far behind a cloud may be with what it was asked for, seconds.

    Attributes:
        landing_s: How long a call goes on after its caller died.
        launch_s: The same for a call that launches: it is answered only when the whole gang was placed.
        showing_s: How long what was made is not found by its tags.
    """

    landing_s: float
    launch_s: float
    showing_s: float


AT_AWS: Final = Delays(landing_s=60.0, launch_s=180.0, showing_s=20.0)
"""As long as a living caller waits for these answers, and as long as EC2 may take to list what it has made."""

ELSEWHERE: Final = Delays(landing_s=1.0, launch_s=1.0, showing_s=1.0)
"""At another endpoint: what stands in for AWS has nothing on its way for long and shows at once what it has."""


def delays_at(endpoint: str) -> Delays:
    """Return how far behind the cloud at this endpoint may be; an empty one is the real AWS."""
    return ELSEWHERE if endpoint else AT_AWS


def launch_shown_by(recorded_at: datetime, now: datetime, delays: Delays) -> datetime:
    """Return when the nodes of a launch whose caller has died by `now` are found by their tags, if there are any.

    Args:
        begun: When the launch was written down, before its call was sent.
        now: When the caller is known to be gone.
        delays: Those of the cloud.
    """
    return min(recorded_at + SENT_AGAIN, now) + timedelta(seconds=delays.launch_s + delays.showing_s)
