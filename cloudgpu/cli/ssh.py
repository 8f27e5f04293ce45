"""`cloudgpu ssh`: the real OpenSSH client on a node, with the pinned host key."""

import os
from typing import Annotated

import typer


def ssh(
    context: typer.Context,
    cluster: Annotated[
        str, typer.Argument(metavar="[CLUSTER]", help="The cluster; may be left out when only one is up.")
    ] = "",
    node: Annotated[int, typer.Option("--node", min=0, help="Index of the node; 0 is the head.")] = 0,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="What to run there; a shell when left out.")
    ] = None,
    carry: Annotated[
        bool, typer.Option("--carry", hidden=True, help="Be the ProxyCommand of an ssh by Session Manager.")
    ] = False,
    show: Annotated[bool, typer.Option("--print", help="Print the ssh command line instead of running it.")] = False,
) -> None:
    """Log in to a node, or run a command there."""
    import shlex

    from cloudgpu.app.logging_in import login
    from cloudgpu.cli.wiring import wire

    wiring = wire()
    name = cluster or wiring.only_cluster()
    if carry:
        carrying = wiring.reaching.carrying(name, node)
        os.execvpe(carrying.argv[0], carrying.argv, dict(carrying.environ))  # noqa: S606 - it takes our place in the pipe
    words = [*(command or []), *(context.obj or [])]
    argv = login(wiring.records, wiring.home, wiring.reaching.means, cluster=name, index=node, command=words)
    if show:
        wiring.screen.line(shlex.join(argv))
        return
    os.execvp(argv[0], argv)  # noqa: S606 - ssh takes the terminal over, as the user expects of `ssh`
