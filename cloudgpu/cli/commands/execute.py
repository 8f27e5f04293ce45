"""`cloudgpu exec`: run a command on every node in parallel."""

from typing import Annotated

import typer

from cloudgpu.app.access.cluster_nodes import connect_to_nodes, find_cluster_nodes
from cloudgpu.app.access.execute import as_json, exit_code, parse_node_indices, shell_line
from cloudgpu.app.access.execute import execute as run
from cloudgpu.cli import completion
from cloudgpu.cli.access.node_login import node_login
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options.shared import Json
from cloudgpu.cli.render.node_output import line_printer, show_outcomes
from cloudgpu.errors import UsageError
from cloudgpu.files import read_input


def _stdin_data() -> bytes:

    try:
        return read_input()
    except OSError as err:
        message = f"cannot read standard input: {err.strerror}"
        raise UsageError(message, hint="to send large files, use the recipe's `workdir` or `data` instead") from err


def execute(  # noqa: PLR0917
    invocation: typer.Context,
    cluster: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            help="Cluster name or run ID. Optional if only one cluster is running.",
            autocompletion=completion.clusters_and_runs,
        ),
    ] = "",
    node: Annotated[str, typer.Option("--node", help="Indices of the nodes to run on, such as 0,2-3.")] = "",
    stream: Annotated[
        bool, typer.Option("--stream", help="Print each line as it arrives, prefixed with its node.")
    ] = False,
    stdin: Annotated[bool, typer.Option("--stdin", help="Pass this command's stdin to every node.")] = False,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND...", help="Command to run. A single argument is passed to a shell."),
    ] = None,
    json: Json = False,
) -> None:
    """Run a command on every node and group the output.

    Nodes with identical output are shown together. Exits 0 if the command succeeds on every node, 9 if a node cannot be
    reached, and otherwise 5. Ctrl-C stops the command on every node.
    """
    line = shell_line([*(command or []), *(invocation.obj or [])])
    context = command_context(json=json)
    name = cluster or context.only_cluster()
    login = node_login(context, name)
    cluster_nodes = find_cluster_nodes(context.records, context.home, login, name)
    indices = parse_node_indices(node, len(cluster_nodes.nodes))
    stdin_data = _stdin_data() if stdin else None
    on_line = line_printer(context.screen) if stream and not json else None
    with connect_to_nodes(login, cluster_nodes, indices) as nodes:
        outcomes = run(nodes, line, context.clock, stdin=stdin_data, on_line=on_line)
    if json:
        context.screen.document(as_json(cluster_nodes.record.name, line, outcomes))
    else:
        show_outcomes(outcomes, context.screen)
    raise typer.Exit(exit_code(outcomes))
