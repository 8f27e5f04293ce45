"""Render the state of the rehearsal cloud, as text and as JSON, always marked as simulated."""

from datetime import datetime
from typing import Any

from cloudgpu.cli.terminal.number_format import relative_time
from cloudgpu.cli.terminal.table import align_columns
from cloudgpu.rehearsal.client import NodeInfo, RehearsalStatus

_HEADINGS = ("instance", "type", "zone", "state", "cluster", "log in", "host key")


def status_json(status: RehearsalStatus) -> dict[str, Any]:
    """Return the documented output of `rehearsal status --json`."""
    return {
        "running": status.cloud is not None,
        "simulated": True,
        "endpoint": status.cloud.url if status.cloud else None,
        "regions": list(status.regions),
        "resident_mib": round(status.resident_mib),
        "nodes": [
            {
                "instance_id": node.instance_id,
                "instance_type": node.instance_type,
                "region": node.region,
                "zone": node.zone,
                "state": node.state,
                "address": node.address,
                "port": node.port,
                "user": node.user,
                "host_key": node.host_key,
                "cluster": node.cluster,
            }
            for node in status.nodes
        ],
    }


def status_lines(status: RehearsalStatus, now: datetime) -> list[str]:
    """Return the endpoint and one line per node."""
    if status.cloud is None:
        return [
            "no rehearsal cloud is running",
            "  commands that need it start it automatically; to start it now: cloudgpu rehearsal start",
        ]
    head = f"rehearsal cloud (simulated AWS) at {status.cloud.url}, {status.resident_mib:.0f} MiB of memory"
    stops = "" if status.idle_stop_at is None else f"; stops automatically {relative_time(status.idle_stop_at, now)}"
    if not status.nodes:
        return [head, f"  no nodes{stops}"]
    return [head, *align_columns([_HEADINGS, *(_row(node) for node in status.nodes)], indent="  ")]


def _row(node: NodeInfo) -> tuple[str, ...]:
    where = f"{node.user}@{node.address} port {node.port}" if node.address else "not listening yet"
    return node.instance_id, node.instance_type, node.zone, node.state, node.cluster, where, node.host_key
