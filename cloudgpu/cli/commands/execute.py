"""`cloudgpu exec`: run a command on every node in parallel."""

from collections.abc import Sequence
from typing import Annotated

import typer

from cloudgpu.app.access.cluster_nodes import connect_to_nodes, find_cluster_nodes
from cloudgpu.app.access.execute import NodeOutcome, OnLine, as_json, exit_code, parse_node_indices, shell_line
from cloudgpu.app.access.execute import execute as run
from cloudgpu.cli import completion
from cloudgpu.cli.access.node_login import node_login
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options.shared import Json
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.errors import UsageError
from cloudgpu.files import read_input

_SIGNALLED = 128


def line_printer(screen: Screen) -> OnLine:
    """Return a callback that shows each line, prefixed with its node, as it arrives."""

    def shown(index: int, error: bool, line: str) -> None:
        text = f"[node {index}] {line}"
        if error:
            screen.error_lines([text])
        else:
            screen.lines([text])

    return shown


def show_outcomes(outcomes: Sequence[NodeOutcome], screen: Screen) -> None:
    """Write the stdout of the nodes to stdout, and their stderr and failures to stderr."""
    alone = len(outcomes) == 1
    for nodes, outcome in group_by_output(outcomes):
        if alone:
            _raw(outcome, screen)
        else:
            screen.lines(indented_block(nodes, outcome.stdout))
            screen.error_lines(indented_block(f"{nodes}, standard error", outcome.stderr))
        for line in failure_lines(nodes, outcome):
            screen.remark(line)


def group_by_output(outcomes: Sequence[NodeOutcome]) -> list[tuple[str, NodeOutcome]]:
    """Group nodes with the same output and exit code, in the order of each group's first node."""
    groups: dict[tuple[object, ...], list[NodeOutcome]] = {}
    for outcome in outcomes:
        # Error messages contain the name of the node, so nodes that could not be reached are never grouped.
        groups.setdefault((outcome.exit_code, outcome.stdout, outcome.stderr, outcome.error), []).append(outcome)
    return [(node_label([outcome.node for outcome in group]), group[0]) for group in groups.values()]


def node_label(indices: Sequence[int]) -> str:
    """Format node indices as `node 3` or `nodes 0-2, 5`."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    listed = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"node{'s' if len(indices) > 1 else ''} {listed}"


def indented_block(title: str, text: str) -> list[str]:
    """Return the title and the indented lines of the text; an empty list if the text is empty."""
    lines = text.splitlines()
    return [f"{title}:", *(f"  {line}" for line in lines)] if lines else []


def failure_lines(nodes: str, outcome: NodeOutcome) -> list[str]:
    """Return lines that describe the failure on these nodes; an empty list if the command succeeded."""
    if outcome.error:
        return [f"{nodes}: {outcome.error}", *([f"  hint: {outcome.hint}"] if outcome.hint else [])]
    if not outcome.exit_code:
        return []
    signal = outcome.exit_code - _SIGNALLED
    by = f" (signal {signal})" if signal > 0 else ""
    return [f"{nodes}: failed with exit code {outcome.exit_code}{by}"]


def _raw(outcome: NodeOutcome, screen: Screen) -> None:
    """Write the output of a single node, unchanged if stdout is a pipe or a file."""
    screen.raw(outcome.stdout)
    screen.error_lines(outcome.stderr.splitlines())


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
