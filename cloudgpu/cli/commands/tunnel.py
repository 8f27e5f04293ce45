"""`cloudgpu tunnel`: forward local ports to a node."""

from typing import Annotated

import typer

from cloudgpu.app.access.cluster_nodes import connect_to_nodes, find_cluster_nodes
from cloudgpu.app.access.tunnels import (
    describe_tunnel,
    is_port_forward,
    keep_connected,
    open_tunnels,
    parse_port_forwards,
    service_ports,
)
from cloudgpu.app.runs.services import services_on
from cloudgpu.cli import completion
from cloudgpu.cli.access.node_login import node_login
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options.shared import Json, integer_parser
from cloudgpu.ssh.connection import SshHost

_INTERRUPTED = 130


def tunnel(
    cluster: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            help="Cluster name or run ID. Optional if only one cluster is running.",
            autocompletion=completion.clusters_and_runs,
        ),
    ] = "",
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
        opened, name = open_tunnels(host, forwards, context.emit), cluster_nodes.record.name
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
                emit=context.emit,
                authorize_caller=login.authorize_caller,
            )
        except KeyboardInterrupt:
            context.screen.wrapped(["", "tunnel closed; processes on the node keep running"])
            raise typer.Exit(_INTERRUPTED) from None
