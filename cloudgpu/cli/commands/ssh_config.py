"""`cloudgpu ssh-config`: add a cluster's nodes to the user's OpenSSH configuration."""

from pathlib import Path
from typing import Annotated

import typer

from cloudgpu.app.access.cluster_nodes import connect_to_nodes, find_cluster_nodes
from cloudgpu.app.access.ssh_config import build_entries, write_entries
from cloudgpu.cli import completion
from cloudgpu.cli.access.node_login import node_login
from cloudgpu.cli.context import CliContext, command_context
from cloudgpu.errors import StateError, UsageError
from cloudgpu.state.identifiers import require_cluster_name
from cloudgpu.state.user_ssh_config import SshFolder
from cloudgpu.state.user_ssh_config import remove_entries as take_back
from cloudgpu.text import command


def ssh_config(
    cluster: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            help="Cluster name. Optional if only one cluster is running.",
            autocompletion=completion.clusters,
        ),
    ] = "",
    show: Annotated[bool, typer.Option("--print", help="Print the entries without changing ~/.ssh.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the entries. `down` also removes them.")] = False,
) -> None:
    """Add a cluster's nodes to ~/.ssh for ssh, scp and editors.

    Writes ~/.ssh/cloudgpu.d/NAME and adds an Include line at the top of ~/.ssh/config, unless the line already exists.
    The nodes are named NAME-0, NAME-1 and so on; NAME alone is the head node. Host keys are pinned. `down` removes the
    entries.
    """
    context = command_context()
    name = cluster or context.only_cluster()
    folder = SshFolder(Path.home() / ".ssh")
    if remove:
        _remove(context, name, folder)
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


def _remove(context: CliContext, name: str, folder: SshFolder) -> None:
    """Remove the entries of a cluster, which is given by its name or by the ID of one of its runs."""
    if not name:
        raise UsageError("no cluster is recorded", hint="specify the name of the cluster whose entries to remove")
    name = require_cluster_name(name)
    if not context.home.cluster(name).ssh_config.exists() and (run := context.records.run(name)) is not None:
        name = require_cluster_name(run.cluster)
    record = context.home.cluster(name).ssh_config
    if not record.exists():
        context.screen.line(f"~/.ssh has no entries for cluster {name} from this state home")
        return
    problems = take_back(context.home, name)
    if problems:
        raise StateError(
            "; ".join(problems), hint=f"remove the files {command(str(folder.ours / name))} and {command(str(record))}"
        )
    context.screen.line(f"removed the entries for cluster {name} from {folder.ours}")
