"""Looking for what an unanswered intent may have made."""

from datetime import datetime, timedelta

from cloudgpu.aws.resources.base import Physical
from cloudgpu.errors import CloudGpuError
from cloudgpu.provision.deployment import Deployment, made_row
from cloudgpu.provision.state import Intent, Resource

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 5.0
_FEWEST_LOOKS = 2


def look_for(deployment: Deployment, intent: Intent) -> Physical | None:
    """Search until it is found, or until the cloud has had its time to show it: one empty search proves nothing.

    Raises:
        CloudGpuError: The cloud cannot be asked.
    """
    handler = deployment.handlers.handler(intent.type)
    clock = deployment.watched("adopt", intent)
    context = deployment.context(intent.region, intent.token, clock)
    shown_by = datetime.fromisoformat(intent.at) + timedelta(seconds=deployment.settle_s)
    looks, pause_s = 0, _FIRST_PAUSE_S
    while True:
        found = handler.find(context, intent.inputs)
        looks += 1
        if found is not None or (looks >= _FEWEST_LOOKS and clock.now() >= shown_by):
            return found
        clock.sleep(pause_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def adopt(deployment: Deployment, intent: Intent) -> bool:
    """Take what an unanswered intent has made into the journal; False when it made nothing.

    Raises:
        CloudGpuError: The cloud cannot be asked.
    """
    try:
        found = look_for(deployment, intent)
    except CloudGpuError as err:
        deployment.failed("adopt", intent, err)
        raise
    if found is None:
        return False
    deployment.journal.add(made_row(deployment.vault, intent, found))
    deployment.report.say("done", "adopt", intent, detail=found.id)
    return True


def unanswered(deployment: Deployment) -> list[Intent]:
    """The creations whose end nobody knows."""
    with deployment.journal.lock:
        return [intent for intent in deployment.journal.state.open.values() if intent.operation == "create"]


def existing(deployment: Deployment) -> list[Resource]:
    """All that exists as far as the journal knows."""
    with deployment.journal.lock:
        return deployment.journal.state.everything()
