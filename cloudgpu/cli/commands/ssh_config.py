"""`cloudgpu ssh-config`: add a cluster's nodes to the user's OpenSSH configuration."""

from pathlib import Path
from typing import Annotated

import typer

from cloudgpu.app.access.cluster_nodes import connect_to_nodes, find_cluster_nodes
from cloudgpu.app.access.ssh_config import build_entries, write_entries
from cloudgpu.cli.commands.node_login import node_login
from cloudgpu.cli.context import command_context
from cloudgpu.state.ssh_config_record import remove_entries as take_back
from cloudgpu.state.user_ssh_config import SshFolder
from cloudgpu.text import command


def ssh_config(
    cluster: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Cluster name. Optional if only one cluster is running.")
    ] = "",
    show: Annotated[bool, typer.Option("--print", help="Print the entries without changing ~/.ssh.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the entries. `down` also removes them.")] = False,
) -> None:
    """Add a cluster's nodes to ~/.ssh for ssh, scp and editors.

    Writes ~/.ssh/cloudgpu.d/NAME and, if it is missing, one Include line at the top of ~/.ssh/config. The nodes are
    named NAME-0, NAME-1 and so on, and NAME is the head node. Their host keys are pinned. `down` removes the entries.
    """
    context = command_context()
    name = cluster or context.only_cluster()
    folder = SshFolder(Path.home() / ".ssh")
    if remove:
        for trouble in take_back(context.home, name):
            context.screen.remark(trouble)
        context.screen.line(f"removed the entries of cluster {name} from {folder.ours}")
        return
    login = node_login(context, name)
    cluster_nodes = find_cluster_nodes(context.records, context.home, login, name)
    with connect_to_nodes(login, cluster_nodes, range(len(cluster_nodes.nodes))) as nodes:
        ssh_entries = build_entries(context.home, login, cluster_nodes, nodes)
    name = cluster_nodes.record.name
    if show:
        context.screen.raw(ssh_entries.text)
        return
    included = write_entries(context.home, name, ssh_entries, folder)
    context.screen.line(f"added {', '.join(ssh_entries.names)} to {folder.ours / name}")
    if included:
        context.screen.line(f"added an Include line at the top of {folder.config}")
    remove_command = command("cloudgpu", "ssh-config", name, "--remove")
    context.screen.line(f"to log in: {command('ssh', name)}    to remove the entries: {remove_command}")
