"""The dependencies of commands that log in to nodes: `ssh`, `exec`, `tunnel` and `ssh-config`."""

import sys

from cloudgpu.app.access.ssh import NodeLogin, find_cluster_record
from cloudgpu.cli.access.authorize import authorize_caller
from cloudgpu.cli.context import CliContext
from cloudgpu.targets import as_target


def node_login(context: CliContext, cluster: str) -> NodeLogin:
    """Return the dependencies for logging in to a cluster's nodes. `cluster` is a cluster name or a run ID."""
    record = find_cluster_record(context.records, cluster)
    carriers = context.backend(as_target(record.identity.target)).carriers()

    def proxy_command(name: str, index: int) -> list[str]:
        # Set CLOUDGPU_HOME, because an editor or scp may start OpenSSH in an environment without the variable.
        home = "=".join(("CLOUDGPU_HOME", str(context.settings.home)))
        return ["env", home, sys.executable, "-m", "cloudgpu", "ssh", name, "--node", str(index), "--carry"]

    return NodeLogin(
        context.settings.ssh_key,
        context.clock,
        carriers,
        proxy_command,
        lambda record: authorize_caller(context, record),
    )
