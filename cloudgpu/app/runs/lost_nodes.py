"""What is lost with the nodes of a run, and the command with which the user continues."""

from collections.abc import Collection, Mapping
from typing import Any

from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.run_record import RunRecord
from cloudgpu.text import command

SPOT = "spot"
PROBABLY_SPOT = "most likely a spot interruption: AWS needed the capacity"


def node_words(cluster: ClusterRecord | None) -> str:
    """Return `spot node` for a node of a spot cluster, otherwise `node`."""
    return "spot node" if is_spot(cluster) else "node"


def is_spot(cluster: ClusterRecord | None) -> bool:
    """Return True if the cluster has spot nodes."""
    return cluster is not None and cluster.placement.market == SPOT


def terminated_node_lines(
    cluster: ClusterRecord | None, instance_ids: Mapping[int, str], connected: Collection[int]
) -> tuple[str, ...]:
    """Return a line for each node, by index, that is not connected."""
    return tuple(
        f"{node_words(cluster)} {index} ({instance_id}) is terminated and its data is lost"
        for index, instance_id in instance_ids.items()
        if index not in connected
    )


def what_is_lost(record: RunRecord) -> str:
    """Return what a run loses with its nodes, and the command that continues the run or starts it again."""
    checkpoint = _section(record, "checkpoint")
    uploaded = str(checkpoint.get("to") or "")
    train = ("cloudgpu", "train", record.recipe_path)
    if uploaded:
        # The next run finds checkpoints by itself, unless the URL contains the run ID.
        resume = uploaded.replace("{run}", record.run_id)
        options = ("--set", f"checkpoint.resume={resume}") if resume != uploaded else ()
        return f"its outputs are lost; checkpoints are in {resume}; resume with: {command(*train, *options)}"
    lost = "its outputs and checkpoints are lost" if checkpoint else "its outputs are lost"
    market = ("--set", "resources.market=on-demand") if _section(record, "resources").get("market") == SPOT else ()
    return f"{lost}; start again with: {command(*train, *market)}"


def _section(record: RunRecord, name: str) -> Mapping[str, Any]:
    section = record.resolved.get(name)
    return section if isinstance(section, Mapping) else {}
