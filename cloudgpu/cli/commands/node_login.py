"""The dependencies of commands that log in to nodes: `ssh`, `exec`, `tunnel` and `ssh-config`."""

import sys

from cloudgpu.app.access.ssh import NodeLogin, find_cluster_record
from cloudgpu.cli.commands.authorize import authorize_caller
from cloudgpu.cli.context import CliContext
from cloudgpu.targets import as_target


def node_login(context: CliContext, cluster: str) -> NodeLogin:
    """Return the dependencies for logging in to the nodes of a cluster, given its name or the ID of one of its runs.

    Raises:
        UsageError: The cluster does not exist.
    """
    record = find_cluster_record(context.records, cluster)
    carriers = context.backend(as_target(record.target)).carriers()

    def proxy_command(name: str, index: int) -> list[str]:
        # CLOUDGPU_HOME is set because OpenSSH may run in another environment.
        home = "=".join(("CLOUDGPU_HOME", str(context.settings.home)))
        return ["env", home, sys.executable, "-m", "cloudgpu", "ssh", name, "--node", str(index), "--carry"]

    return NodeLogin(
        context.settings.ssh_key,
        context.clock,
        carriers,
        proxy_command,
        lambda record: authorize_caller(context, record),
    )
