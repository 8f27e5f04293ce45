"""A cluster as text and as JSON."""

from typing import Any

from cloudgpu.app.provisioning import Standing


def standing_json(standing: Standing) -> dict[str, Any]:
    """The documented `up --json` form."""
    record = standing.record
    return {
        "cluster": record.name,
        "made": standing.made,
        "simulated": record.simulated,
        "region": record.region,
        "zone": record.zone,
        "instance_type": record.instance_type,
        "nodes": standing.inventory.as_json()["nodes"],
        "node_hourly_usd": record.node_hourly_usd,
        "expires_at": record.expires_at.isoformat(),
        "tried": list(standing.tried),
    }


def standing_lines(standing: Standing) -> list[str]:
    """What stands, until when, and how to end it."""
    record = standing.record
    head = "is up" if standing.made else "was up already, and is as it should be"
    mark = " (simulated)" if record.simulated else ""
    lines = [
        "",
        f"cluster {record.name} {head}: {record.nodes} x {record.instance_type} in {record.zone}{mark}",
        f"  expires  {record.expires_at:%Y-%m-%d %H:%M} UTC, whatever happens",
    ]
    lines += [
        f"  node {node.index}   {node.instance_id}  {node.user}@{node.address} port {node.port}"
        for node in standing.inventory.nodes
    ]
    return [*lines, f"  end it   cloudgpu down {record.name}"]
