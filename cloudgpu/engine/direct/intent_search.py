"""Looking for what an unanswered intent may have made.

A call outlives whoever sent it: killed the moment after, its caller leaves a launch that the cloud is still carrying
out, and what it makes is found by its tags only some time later. So one empty search proves nothing. Who ends a
cluster looks until the last such call has landed and shows; who makes it again only until what has landed shows,
since the same call under the same token, or the same name, makes no second one.
"""

from datetime import datetime, timedelta
from typing import Final

from cloudgpu import bounds
from cloudgpu.aws.resources.base import Physical
from cloudgpu.engine.direct.deployment import Deployment, made_row
from cloudgpu.engine.direct.journal_state import Intent, Resource
from cloudgpu.engine.direct.operation_timeout import WatchedClock
from cloudgpu.engine.direct.unanswered_delays import SENT_AGAIN, launch_shown_by
from cloudgpu.errors import CloudGpuError

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 5.0
_FEWEST_LOOKS = 2
_SAY_EVERY_S = 20.0
BY_THE_HOUR: Final = frozenset({"aws:ec2/fleet:Fleet", "aws:ec2/instance:Instance"})
"""What is launched: AWS takes its time over it, and it costs while one waits."""


def look_for(deployment: Deployment, intent: Intent, *, ending: bool = False) -> Physical | None:
    """Search until it is found, or until the cloud has had its time: to show it and, with `ending`, to make it.

    Raises:
        CloudGpuError: The cloud cannot be asked.
    """
    handler = deployment.handlers.handler(intent.type)
    clock = _said(deployment, intent, until := _until(deployment, intent, ending=ending))
    context = deployment.context(intent.region, intent.token, clock)
    # Seconds, not the time of day: a clock that is set meanwhile makes this neither endless nor empty.
    deadline = clock.monotonic() + max(0.0, (until - clock.now()).total_seconds())
    looks, pause_s = 0, _FIRST_PAUSE_S
    while True:
        last = clock.monotonic() >= deadline
        found = handler.find(context, intent.inputs)
        looks += 1
        if found is not None or (looks >= _FEWEST_LOOKS and last):
            return found
        clock.sleep(pause_s if last else min(pause_s, max(0.0, deadline - clock.monotonic())))
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def adopt(deployment: Deployment, intent: Intent, *, ending: bool = False) -> bool:
    """Take what an unanswered intent has made into the journal; False when it made nothing.

    Raises:
        CloudGpuError: The cloud cannot be asked.
    """
    try:
        found = look_for(deployment, intent, ending=ending)
    except CloudGpuError as err:
        deployment.failed("adopt", intent, err)
        raise
    if found is None:
        return False
    deployment.journal.add(made_row(deployment.redactor, intent, found))
    deployment.report.emit("done", "adopt", intent, detail=found.id)
    return True


def _until(deployment: Deployment, intent: Intent, *, ending: bool) -> datetime:
    """When what this call has made shows. A clock that went back since then does not put that off."""
    delays, now = deployment.delays, deployment.clock.now()
    try:
        begun = bounds.moment(intent.at)
    except ValueError:
        begun = now  # nobody knows when it was sent: wait as long as for one that was sent just now
    if not ending:
        return min(begun, now) + timedelta(seconds=delays.showing_s)
    if intent.type in BY_THE_HOUR:
        return launch_shown_by(begun, now, delays)
    return min(begun + SENT_AGAIN, now) + timedelta(seconds=delays.landing_s + delays.showing_s)


def _said(deployment: Deployment, intent: Intent, until: datetime) -> WatchedClock:
    """A clock that says what is awaited, and until when at most."""

    def waiting(elapsed_s: float) -> None:
        detail = f"whose call nobody saw answered and which may still come, until {until:%H:%M:%S} UTC"
        deployment.report.emit("waiting", "adopt", intent, detail=detail, seconds=elapsed_s)

    what = f"adopt of {intent.type} {intent.name!r}"
    return WatchedClock(deployment.clock, what=what, on_wait=waiting, say_every_s=_SAY_EVERY_S)


def unanswered(deployment: Deployment) -> list[Intent]:
    """The creations whose end nobody knows."""
    with deployment.journal.lock:
        return [intent for intent in deployment.journal.state.open.values() if intent.operation == "create"]


def existing(deployment: Deployment) -> list[Resource]:
    """All that exists as far as the journal knows."""
    with deployment.journal.lock:
        return deployment.journal.state.everything()
