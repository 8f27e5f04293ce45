"""Build the proxy commands for SSH connections through AWS Session Manager."""

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
    """Starts Session Manager sessions to the nodes of one target.

    Attributes:
        clients: Function that returns the AWS clients for a node's region.
        plugin: Path of the Session Manager plugin, followed by its first arguments if there are any.
        environ: The caller's environment, which is passed to the plugin.
    """

    clients: Callable[[Node], Clients]
    plugin: tuple[str, ...]
    profile: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)

    def command(self, node: Node) -> CarryingCommand:
        """Start a session to a node and return the proxy command for the SSH connection.

        Raises:
            ConnectError: The node's SSM agent has not registered yet.
            CloudError: AWS rejected the request.
        """
        started = session_manager.start(self.clients(node), node.instance_id, node.port, self.profile)
        return CarryingCommand((*self.plugin, *started.arguments), {**self.environ, **started.variables})


def session_plugin(configured: str) -> tuple[str, ...]:
    """Return the command line of the Session Manager plugin: the configured path, or the plugin found on the PATH.

    Raises:
        UsageError: The plugin is not installed.
    """
    path = shutil.which(configured or _PLUGIN)
    if path is None:
        problem = "cannot be run" if configured else "is not on the PATH"
        message = f"{configured or _PLUGIN} {problem}; it is required to reach nodes through Session Manager"
        raise UsageError(message, hint="install the plugin from AWS, set session_manager_plugin, or use reach = direct")
    return (path,)
