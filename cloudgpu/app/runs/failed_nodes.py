"""Save the console output and the bootstrap log of nodes that failed, because the nodes may be deleted next."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cloudgpu.backends.base import Context
from cloudgpu.backends.lifecycle.console_logs import save_consoles
from cloudgpu.errors import CloudGpuError
from cloudgpu.launch.inventory import Inventory
from cloudgpu.run.agent import Agent
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.state.node_logs import MOST_BYTES, MOST_NODES, mention, node_log, save_node_log

_LOG_S: Final = 30.0


def save_logs_of_failed_nodes(
    context: Context, err: CloudGpuError, inventory: Inventory, agents: Sequence[Agent], folder: Path
) -> None:
    """Save the logs of the nodes that an error names, and name the files in the error's hint.

    Nodes of the user's own hosts are left out. The bootstrap log is read only from connected nodes.
    """
    failed = [node for node in inventory.nodes if node.index in err.nodes and not node.own][:MOST_NODES]
    connected = {agent.host.node.index: agent for agent in agents}
    saved: list[Path] = []
    record = context.records.last_known(inventory.cluster)
    if record is not None:
        ids = {node.index: node.instance_id for node in failed}
        saved += save_consoles(context, record.placement.region, ids, folder)
    for node in failed:
        if node.index in connected:
            text = bootstrap_log(connected[node.index])
            saved += filter(None, [save_node_log(node_log(folder, node.index, "bootstrap"), text)])
    err.hint = mention(err.hint, saved)


def bootstrap_log(agent: Agent) -> str:
    """Return the end of a node's bootstrap log; empty if the node does not respond."""
    script = f'tail -c {MOST_BYTES} -- "$1/var/lib/cloudgpu/bootstrap.log"'
    try:
        return agent.host.try_run(RemoteCommand("sh", "-c", script, "sh", agent.root), timeout_s=_LOG_S).stdout
    except CloudGpuError:
        return ""
