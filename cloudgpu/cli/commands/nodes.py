"""The commands that connect to the nodes of a cluster: `ssh`, `ssh-config`, `exec` and `tunnel`."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cloudgpu.app.execute import NodeOutcome, OnLine, as_json, exit_code, parse_node_indices, shell_line
from cloudgpu.app.execute import execute as run
from cloudgpu.app.runs.services import services_on
from cloudgpu.app.ssh import (
    NodeLogin,
    build_entries,
    build_login_command,
    connect_to_nodes,
    find_cluster_nodes,
    find_cluster_record,
    node_by_index,
    parse_node_and_command,
    write_entries,
)
from cloudgpu.app.tunnels import (
    describe_tunnel,
    is_port_forward,
    keep_connected,
    open_tunnels,
    parse_port_forwards,
    service_ports,
)
from cloudgpu.cli import completion
from cloudgpu.cli.context import CliContext, command_context
from cloudgpu.cli.options import Json, integer_parser
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.errors import StateError, UsageError
from cloudgpu.files import read_input
from cloudgpu.ssh.connection import SshHost
from cloudgpu.state.identifiers import require_cluster_name
from cloudgpu.state.nodes import stored_inventory
from cloudgpu.state.user_ssh_config import SshFolder, remove_entries
from cloudgpu.targets import as_target
from cloudgpu.text import command

_SIGNALLED = 128
_INTERRUPTED = 130
ClusterOrRun = Annotated[
    str,
    typer.Argument(
        metavar="[NAME]",
        help="Cluster name or run ID. Optional if only one cluster is running.",
        autocompletion=completion.clusters_and_runs,
    ),
]


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
        context.authorize_caller,
    )


def ssh(
    invocation: typer.Context,
    cluster: ClusterOrRun = "",
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
        _remove_ssh_config(context, name, folder)
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


def _remove_ssh_config(context: CliContext, name: str, folder: SshFolder) -> None:
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
    problems = remove_entries(context.home, name)
    if problems:
        raise StateError(
            "; ".join(problems), hint=f"remove the files {command(str(folder.ours / name))} and {command(str(record))}"
        )
    context.screen.line(f"removed the entries for cluster {name} from {folder.ours}")


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
            _write_raw_output(outcome, screen)
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


def _write_raw_output(outcome: NodeOutcome, screen: Screen) -> None:
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
    cluster: ClusterOrRun = "",
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


def tunnel(
    cluster: ClusterOrRun = "",
    port: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[[LOCAL:]PORT]...", help="Ports on the node. Default: the ports of the node's running services."
        ),
    ] = None,
    node: Annotated[
        int, typer.Option("--node", parser=integer_parser(0, 999), help="Node index; 0 is the head node.")
    ] = 0,
    local: Annotated[
        int | None,
        typer.Option(
            "--local",
            parser=integer_parser(1, 65535),
            help="Local port. Default: the remote port, or the next free port.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Forward local ports to a node until Ctrl-C.

    Listens only on 127.0.0.1. Reconnects if the connection to the node is lost.
    """
    context = command_context(json=json)
    words = list(port or [])
    if cluster and is_port_forward(cluster) and context.records.cluster(cluster) is None:
        cluster, words = "", [cluster, *words]
    login = node_login(context, cluster or context.only_cluster())
    cluster_nodes = find_cluster_nodes(context.records, context.home, login, cluster or context.only_cluster())
    cluster_nodes.node(node)
    served = services_on(context.records, cluster_nodes.record.name, context.home) if node == 0 else ()
    forwards = parse_port_forwards(words or service_ports(served, cluster_nodes.record.name), local)
    with connect_to_nodes(login, cluster_nodes, (node,)) as nodes:
        host = nodes[node]
        if not isinstance(host, SshHost):
            raise host
        opened, name = open_tunnels(host, forwards, context.screen.emit), cluster_nodes.record.name
        if json:
            rows = [{"remote": forward.remote, "local": forward.local} for forward in opened]
            context.screen.document({"cluster": name, "node": node, "tunnels": rows})
        context.screen.lines(
            [*(describe_tunnel(forward, name, node, served) for forward in opened), "to close the tunnel, press Ctrl-C"]
        )
        try:
            keep_connected(
                host,
                cluster_nodes.record,
                records=context.records,
                clock=context.clock,
                emit=context.screen.emit,
                authorize_caller=login.authorize_caller,
            )
        except KeyboardInterrupt:
            context.screen.wrapped(["", "tunnel closed; processes on the node keep running"])
            raise typer.Exit(_INTERRUPTED) from None
