"""`cloudgpu ssh`: log in to a node with OpenSSH and its pinned host key."""

import os
import shlex
from typing import Annotated

import typer

from cloudgpu.app.access.ssh import build_login_command, find_cluster_record, node_by_index, parse_node_and_command
from cloudgpu.cli import completion
from cloudgpu.cli.access.node_login import node_login
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options.shared import integer_parser
from cloudgpu.state.inventories import stored_inventory
from cloudgpu.targets import as_target


def ssh(
    invocation: typer.Context,
    cluster: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            help="Cluster name or run ID. Optional if only one cluster is running.",
            autocompletion=completion.clusters_and_runs,
        ),
    ] = "",
    node: Annotated[
        int | None, typer.Option("--node", parser=integer_parser(0, 999), help="Node index; 0 is the head node.")
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NODE] [-- COMMAND...]",
            help="Node index (default: 0) and command (default: a login shell).",
        ),
    ] = None,
    carry: Annotated[
        bool, typer.Option("--carry", hidden=True, help="Act as ProxyCommand for ssh over Session Manager.")
    ] = False,
    show: Annotated[bool, typer.Option("--print", help="Print the ssh command line instead of running it.")] = False,
) -> None:
    """Log in to a node, or run a command on it.

    Runs OpenSSH with the node's pinned host key.
    """
    context = command_context()
    name = cluster or context.only_cluster()
    index, command = parse_node_and_command(node, words or [], invocation.obj or [])
    if carry:
        record = find_cluster_record(context.records, name)
        chosen = node_by_index(stored_inventory(context.home, record).nodes, record, index)
        carrying = context.backend(as_target(record.identity.target)).carriers().session(chosen)
        os.execvpe(carrying.argv[0], carrying.argv, dict(carrying.environ))  # noqa: S606 - the new program inherits ssh's pipes
    argv = build_login_command(
        context.records, context.home, node_login(context, name), cluster=name, index=index, command=command
    )
    if show:
        context.screen.raw(f"{shlex.join(argv)}\n")
        return
    os.execvp(argv[0], argv)  # noqa: S606 - ssh takes over the terminal, as the user expects
