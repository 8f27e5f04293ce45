"""Sessions of Session Manager to nodes, as the programs that carry them."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cloudgpu.aws.ec2 import session_manager
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import UsageError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.carrier import CarryingCommand

_PLUGIN = "session-manager-plugin"


@dataclass(frozen=True)
class Sessions:
    """Session Manager for nodes of one target.

    Attributes:
        clients: Of the region that a node is in.
        plugin: The program that carries a session, with its first arguments.
        environ: The caller's environment, which the plugin gets too.
    """

    clients: Callable[[Node], Clients]
    plugin: tuple[str, ...]
    profile: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)

    def command(self, node: Node) -> CarryingCommand:
        """A session to a node, as the program that carries it.

        Raises:
            ConnectError: The node's SSM agent has not called in, or not yet.
            CloudError: AWS refused.
        """
        started = session_manager.start(self.clients(node), node.instance_id, node.port, self.profile)
        return CarryingCommand((*self.plugin, *started.arguments), {**self.environ, **started.variables})


def session_plugin(named: str) -> tuple[str, ...]:
    """AWS's own plugin: the one that is named, else the one on the PATH.

    Raises:
        UsageError: It is not installed.
    """
    path = shutil.which(named or _PLUGIN)
    if path is None:
        where = "cannot be run" if named else "is not on the PATH"
        message = f"{named or _PLUGIN} {where}: it carries SSH to nodes that are reached by Session Manager"
        raise UsageError(message, hint="install it from AWS, or set session_manager_plugin; else reach = direct")
    return (path,)
