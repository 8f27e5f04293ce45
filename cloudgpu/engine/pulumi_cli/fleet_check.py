"""Reject incomplete fleets: Pulumi's AWS plugin reports an `instant` fleet as created even if it launched nothing."""

from collections.abc import Callable

from cloudgpu.aws.ec2.fleets import shortfall
from cloudgpu.aws.session.session import Clients
from cloudgpu.engine.pulumi_cli.events import Listener
from cloudgpu.engine.pulumi_cli.stacks import Document, StackPort
from cloudgpu.engine.pulumi_cli.state import gangs


def check_gangs(stack: StackPort, document: Document, clients: Clients, listener: Callable[[], Listener]) -> None:
    """Delete every incomplete fleet and raise the reason.

    Raises:
        CapacityError: The zone lacks capacity for the whole gang; the fleet is deleted.
        LaunchError: AWS gave another reason; the fleet is deleted.
        CloudGpuError: The fleet could not be deleted, or the AWS API call failed.
    """
    incomplete = [gang for gang in gangs(document) if gang.launched < gang.target]
    if not incomplete:
        return
    reasons = [shortfall(clients, gang.id, got=gang.launched, wanted=gang.target) for gang in incomplete]
    stack.destroy(listener(), [gang.urn for gang in incomplete])
    raise reasons[0]
