"""Commands that carry SSH to nodes through AWS Session Manager."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cloudgpu.aws.ec2 import session_manager
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import UsageError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.tcp_connector import CarryingCommand

_PLUGIN = "session-manager-plugin"


@dataclass(frozen=True)
class SessionManager:
    """Session Manager for nodes of one target.

    Attributes:
        clients: Returns the AWS clients for the region of a node.
        plugin: The plugin program with its first arguments.
        environ: The caller's environment, which is passed to the plugin.
    """

    clients: Callable[[Node], Clients]
    plugin: tuple[str, ...]
    profile: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)

    def command(self, node: Node) -> CarryingCommand:
        """Start a session to a node and return the command that carries it.

        Raises:
            ConnectError: The node's SSM agent has not registered yet.
            CloudError: AWS rejected the request.
        """
        started = session_manager.start(self.clients(node), node.instance_id, node.port, self.profile)
        return CarryingCommand((*self.plugin, *started.arguments), {**self.environ, **started.variables})


def session_plugin(named: str) -> tuple[str, ...]:
    """Return AWS's plugin: the configured one, or the one on the PATH.

    Raises:
        UsageError: The plugin is not installed.
    """
    path = shutil.which(named or _PLUGIN)
    if path is None:
        where = "cannot be run" if named else "is not on the PATH"
        message = f"{named or _PLUGIN} {where}; it is required to reach nodes through Session Manager"
        raise UsageError(message, hint="install it from AWS, set session_manager_plugin, or use reach = direct")
    return (path,)
