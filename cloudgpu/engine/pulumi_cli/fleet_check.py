"""Whole gangs only: Pulumi's own AWS plugin takes an `instant` fleet for made that has launched nothing."""

from collections.abc import Callable

from cloudgpu.aws.ec2.fleets import shortfall
from cloudgpu.aws.session.session import Clients
from cloudgpu.engine.pulumi_cli.events import Listener
from cloudgpu.engine.pulumi_cli.stacks import Document, StackPort
from cloudgpu.engine.pulumi_cli.state import gangs


def check_gangs(stack: StackPort, document: Document, clients: Clients, listener: Callable[[], Listener]) -> None:
    """Release every fleet that is not whole, and say why it is not.

    Raises:
        CapacityError: The zone has no room for the whole gang now; the fleet is gone.
        LaunchError: Another reason of AWS's; the fleet is gone.
        CloudGpuError: The fleet could not be released, or AWS not be asked.
    """
    short = [one for one in gangs(document) if one.got < one.wanted]
    if not short:
        return
    reasons = [shortfall(clients, one.id, got=one.got, wanted=one.wanted) for one in short]
    stack.destroy(listener(), [one.urn for one in short])
    raise reasons[0]
