"""Create the requester of a cluster, including the SSH key that the nodes authorize."""

from dataclasses import replace

from cloudgpu.backends.lifecycle.launch_request import Requester
from cloudgpu.cli.context import CliContext
from cloudgpu.cli.planning import preview_requester
from cloudgpu.ssh.keys import ensure_key


def requester(context: CliContext) -> Requester:
    """Return the owner and the team to bill, and the public key that nodes authorize."""
    context.backend().check_access()
    return replace(preview_requester(context), public_key=ensure_key(context.settings.ssh_key).line)
