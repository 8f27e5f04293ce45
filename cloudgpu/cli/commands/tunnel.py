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
from cloudgpu.app.runs.service_urls import services_on
from cloudgpu.cli.commands.options import Json, integer_parser
from cloudgpu.cli.context.wiring import wire
from cloudgpu.ssh.connection import SshHost

_INTERRUPTED = 130


def tunnel(
    cluster: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Cluster name or run ID. Optional if only one cluster is running.")
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
            help="Local port. Default: the remote port, or the next free one.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Forward local ports to a node until Ctrl-C.

    Listens only on 127.0.0.1. Reconnects if the connection to the node is lost.
    """
    wiring = wire(json=json)
    words = list(port or [])
    if cluster and is_port_forward(cluster) and wiring.records.cluster(cluster) is None:
        cluster, words = "", [cluster, *words]
    login = wiring.node_access.node_login
    cluster_nodes = find_cluster_nodes(wiring.records, wiring.home, login, cluster or wiring.only_cluster())
    cluster_nodes.node(node)
    served = services_on(wiring.records, cluster_nodes.record.name, wiring.home) if node == 0 else ()
    forwards = parse_port_forwards(words or service_ports(served, cluster_nodes.record.name), local)
    with connect_to_nodes(login, cluster_nodes, (node,)) as nodes:
        host = nodes[node]
        if not isinstance(host, SshHost):
            raise host
        opened, name = open_tunnels(host, forwards, wiring.emit), cluster_nodes.record.name
        if json:
            rows = [{"remote": forward.remote, "local": forward.local} for forward in opened]
            wiring.screen.document({"cluster": name, "node": node, "tunnels": rows})
        wiring.screen.lines(
            [*(describe_tunnel(forward, name, node, served) for forward in opened), "to close the tunnel, press Ctrl-C"]
        )
        try:
            keep_connected(
                host,
                cluster_nodes.record,
                records=wiring.records,
                clock=wiring.clock,
                emit=wiring.emit,
                authorize_caller=login.authorize_caller,
            )
        except KeyboardInterrupt:
            wiring.screen.lines(["", "tunnel closed; the service on the node is still running"])
            raise typer.Exit(_INTERRUPTED) from None
