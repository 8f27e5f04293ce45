"""Search for the resource that an interrupted create call may have created.

A call may take effect after its caller was killed, and a tag search finds a new resource only after a delay, so one
empty search proves nothing. A deletion therefore searches until the call can no longer take effect and its resource
must be visible. A retry searches only until an existing resource must be visible, because repeating the call with the
same token or name does not create a second resource.
"""

from datetime import datetime, timedelta
from typing import Final

from cloudgpu import bounds
from cloudgpu.aws.resources.handler import ExistingResource
from cloudgpu.engine.direct.deployment import RETRY_PERIOD, Deployment, WatchedClock, completion_row, launch_visible_by
from cloudgpu.engine.direct.journal_state import Intent, Resource
from cloudgpu.errors import CloudGpuError

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 5.0
_FEWEST_SEARCHES = 2
_REPORT_EVERY_S = 20.0
HOURLY_BILLED_TYPES: Final = frozenset({"aws:ec2/fleet:Fleet", "aws:ec2/instance:Instance"})
"""Resource types that launch instances, which appear slowly in searches and cost money while the caller waits."""


def find_created_resource(deployment: Deployment, intent: Intent, *, ending: bool = False) -> ExistingResource | None:
    """Search until the resource of an interrupted create call is found. Return None once it can no longer appear.

    Args:
        deployment: The current deployment.
        intent: The recorded create call.
        ending: Also wait for a call that has not taken effect yet. Deletions set this.
    """
    handler = deployment.handlers.handler(intent.type)
    clock = _watched_clock(deployment, intent, until := _until(deployment, intent, ending=ending))
    context = deployment.context(intent.region, intent.token, clock)
    # Monotonic time: setting the system clock during the search does not change the wait.
    deadline = clock.monotonic() + max(0.0, (until - clock.now()).total_seconds())
    searches, pause_s = 0, _FIRST_PAUSE_S
    while True:
        last = clock.monotonic() >= deadline
        physical = handler.find(context, intent.inputs)
        searches += 1
        if physical is not None or (searches >= _FEWEST_SEARCHES and last):
            return physical
        clock.sleep(pause_s if last else min(pause_s, max(0.0, deadline - clock.monotonic())))
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def adopt(deployment: Deployment, intent: Intent, *, ending: bool = False) -> bool:
    """Search for the resource that an interrupted create call created, and add the resource to the journal.

    Return False if there is no such resource.
    """
    try:
        physical = find_created_resource(deployment, intent, ending=ending)
    except CloudGpuError as err:
        deployment.failed("adopt", intent, err)
        raise
    if physical is None:
        return False
    deployment.journal.add(completion_row(deployment.redactor, intent, physical))
    deployment.report.emit("done", "adopt", intent, detail=physical.id)
    return True


def _until(deployment: Deployment, intent: Intent, *, ending: bool) -> datetime:
    """Return the time by which the call's resource must be visible, even if the clock was set back since the call."""
    delays, now = deployment.delays, deployment.clock.now()
    try:
        sent_at = bounds.parse_time(intent.at)
    except ValueError:
        sent_at = now  # the recorded time is unreadable: assume that the call was sent just now
    if not ending:
        return min(sent_at, now) + timedelta(seconds=delays.visible_s)
    if intent.type in HOURLY_BILLED_TYPES:
        return launch_visible_by(sent_at, now, delays)
    return min(sent_at + RETRY_PERIOD, now) + timedelta(seconds=delays.call_s + delays.visible_s)


def _watched_clock(deployment: Deployment, intent: Intent, until: datetime) -> WatchedClock:
    """Return a clock whose `waiting` events state the reason for the search and its deadline."""

    def waiting(elapsed_s: float) -> None:
        detail = f"its create call received no response; the resource may still appear until {until:%H:%M:%S} UTC"
        deployment.report.emit("waiting", "adopt", intent, detail=detail, seconds=elapsed_s)

    what = f"adopt of {intent.type} {intent.name!r}"
    return WatchedClock(deployment.clock, what=what, on_wait=waiting, say_every_s=_REPORT_EVERY_S)


def unanswered_creates(deployment: Deployment) -> list[Intent]:
    """Return the create intents whose outcome is unknown."""
    with deployment.journal.lock:
        return [intent for intent in deployment.journal.state.open.values() if intent.operation == "create"]


def existing_resources(deployment: Deployment) -> list[Resource]:
    """Return every resource that the journal lists as existing."""
    with deployment.journal.lock:
        return deployment.journal.state.everything()
