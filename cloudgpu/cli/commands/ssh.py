"""`cloudgpu ssh`: log in to a node with OpenSSH and its pinned host key."""

import os
import shlex
from typing import Annotated

import typer

from cloudgpu.app.access.ssh import build_login_command, parse_node_and_command
from cloudgpu.cli.commands.options import integer_parser
from cloudgpu.cli.context.wiring import wire


def ssh(
    context: typer.Context,
    cluster: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Cluster name or run ID. Optional if only one cluster is running.")
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
    wiring = wire()
    name = cluster or wiring.only_cluster()
    index, command = parse_node_and_command(node, words or [], context.obj or [])
    if carry:
        carrying = wiring.node_access.proxy_command(name, index)
        os.execvpe(carrying.argv[0], carrying.argv, dict(carrying.environ))  # noqa: S606 - it replaces this process in the pipe
    argv = build_login_command(
        wiring.records, wiring.home, wiring.node_access.node_login, cluster=name, index=index, command=command
    )
    if show:
        wiring.screen.raw(f"{shlex.join(argv)}\n")
        return
    os.execvp(argv[0], argv)  # noqa: S606 - ssh takes over the terminal, as the user expects
