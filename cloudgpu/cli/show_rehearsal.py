"""The rehearsal cloud as text and as JSON. Everything in it is simulated, and says so."""

from typing import Any

from cloudgpu.rehearsal.client import RehearsalStatus


def status_json(status: RehearsalStatus) -> dict[str, Any]:
    """The documented `rehearsal status --json` form."""
    return {
        "running": status.cloud is not None,
        "simulated": True,
        "endpoint": status.cloud.url if status.cloud else None,
        "regions": list(status.regions),
        "resident_mib": status.resident_mib,
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


def status_lines(status: RehearsalStatus) -> list[str]:
    """The endpoint and one line a node."""
    if status.cloud is None:
        return ["no rehearsal cloud is running; commands that need one start it, as does `cloudgpu rehearsal start`"]
    lines = [f"rehearsal cloud (simulated AWS) at {status.cloud.url}, {status.resident_mib} MiB resident"]
    lines += [
        f"  {node.instance_id}  {node.instance_type}  {node.zone}  {node.state}  "
        f"{node.user}@{node.address} port {node.port}  {node.host_key}"
        for node in status.nodes
    ]
    return lines if status.nodes else [*lines, "  no nodes"]
