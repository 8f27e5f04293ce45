"""Build the proxy commands for SSH connections through AWS Session Manager."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cloudgpu.aws.ec2 import ssh_access
from cloudgpu.aws.session.session import Clients
from cloudgpu.backends.aws.new_nodes import region_of
from cloudgpu.backends.environment import BackendEnvironment
from cloudgpu.backends.node_connections import NodeCarriers, NodeConnections
from cloudgpu.errors import CloudError, ConnectError, UsageError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.forwarding import CarryingCommand
from cloudgpu.targets import is_simulated

if TYPE_CHECKING:
    # Only for annotations: commands that connect directly must not import the engines.
    from cloudgpu.backends.aws.account import AwsAccount

_PLUGIN = "session-manager-plugin"


@dataclass(frozen=True)
class SessionManager:
    """Starts Session Manager sessions to the nodes of one target.

    Attributes:
        clients: Function that returns the AWS clients for a node's region.
        plugin: Command that runs the Session Manager plugin, including any fixed arguments.
        environ: The caller's environment, which is passed to the plugin.
    """

    clients: Callable[[Node], Clients]
    plugin: tuple[str, ...]
    profile: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)

    def command(self, node: Node) -> CarryingCommand:
        """Start a session to a node and return the proxy command for the SSH connection."""
        try:
            started = ssh_access.start_session(self.clients(node), node.instance_id, node.port, self.profile)
        except CloudError as err:
            if not err.renewable:
                raise
            # The node is still running. With new credentials, another attempt succeeds.
            raise ConnectError(err.message, hint=err.hint) from err
        return CarryingCommand((*self.plugin, *started.arguments), {**self.environ, **started.variables})


def session_plugin(configured: str) -> tuple[str, ...]:
    """Return the command that runs the Session Manager plugin: the configured path, or the plugin on the PATH."""
    path = shutil.which(configured or _PLUGIN)
    if path is None:
        problem = "cannot be run" if configured else "is not on the PATH"
        message = f"{configured or _PLUGIN} {problem}; it is required to reach nodes through Session Manager"
        raise UsageError(
            message, hint="install the plugin from AWS, set session_manager_plugin to its path, or set reach = direct"
        )
    return (path,)


def node_connections(environment: BackendEnvironment, cloud: Callable[[], "AwsAccount"]) -> NodeConnections:
    """Return the SSH connections to the nodes of an account: direct, through a jump host, or through Session Manager.

    Args:
        environment: Settings and environment of the command.
        cloud: Function that returns the account. Called only for Session Manager sessions, and for nodes that do not
            respond.
    """
    settings = environment.settings

    def session(node: Node) -> CarryingCommand:
        account, configured = cloud(), settings.session_manager_plugin
        plugin = session_plugin(configured) if configured or not account.session_plugin else account.session_plugin
        sessions = SessionManager(
            lambda peer: account.session(region_of(peer.zone)), plugin, settings.aws_profile, environment.environ
        )
        return sessions.command(node)

    carriers = NodeCarriers(settings.ssh_key, environment.clock, environment.known_hosts, session)

    def check() -> None:
        if settings.bastion:
            carriers.bastion(settings.bastion)
        # The rehearsal cloud has its own replacement for the plugin.
        if settings.reach == "ssm" and (settings.session_manager_plugin or not is_simulated(settings.target)):
            session_plugin(settings.session_manager_plugin)

    def states(nodes: Sequence[Node]) -> Mapping[str, str]:
        account = cloud()
        found: dict[str, str] = {}
        for region in {region_of(node.zone) for node in nodes}:
            ids = [node.instance_id for node in nodes if region_of(node.zone) == region]
            found.update(account.instance_states(region, ids))
        return found

    return NodeConnections(settings.ssh_key, environment.clock, float(settings.boot_seconds), carriers, check, states)
