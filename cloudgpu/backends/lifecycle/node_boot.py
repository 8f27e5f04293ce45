"""Record whether a cluster's nodes have booted and been checked, and save the consoles of nodes that failed.

An `up` that was killed while the nodes were still booting has recorded a running cluster. The next one must wait
for the bootstrap, too.
"""

import contextlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from cloudgpu.backends.base import Context
from cloudgpu.backends.lifecycle.existing_cluster import hold_lease
from cloudgpu.errors import BusyError, CloudGpuError
from cloudgpu.launch.inventory import Inventory
from cloudgpu.paths import Home
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.nodes import MOST_NODES, node_log, save_node_log


def log_folder(home: Home, record: ClusterRecord) -> Path:
    """Return the folder of the run for which the cluster was created, or else the folder of the cluster."""
    run_id = record.identity.run_id
    return home.run(run_id).root if run_id else home.cluster(record.name).root


def save_consoles(context: Context, region: str, instance_ids: Mapping[int, str], folder: Path) -> list[Path]:
    """Save the console output of the nodes with these indices, and return the written files.

    A console that cannot be read is left out, because the failure that led here matters more.
    """
    saved: list[Path] = []
    for index, instance_id in sorted(instance_ids.items())[:MOST_NODES]:
        with contextlib.suppress(CloudGpuError):
            text = context.backend.console_output(region, instance_id)
            saved += filter(None, [save_node_log(node_log(folder, index, "console"), text)])
    return saved


def launched(record: ClusterRecord) -> ClusterRecord:
    """Return the record of a cluster whose instances run, and whose nodes have not been checked."""
    up = record.in_state("up")
    return replace(up, lifecycle=replace(up.lifecycle, nodes_unchecked=True))


def record_checked_nodes(context: Context, inventory: Inventory) -> None:
    """Record that every node of the cluster is healthy.

    While another process changes the cluster, nothing is recorded, so that a later `up` checks the nodes again.
    """
    if not _is_unchecked(context.records.last_known(inventory.cluster), inventory):
        return
    with suppress(BusyError), hold_lease(context, inventory.cluster):
        record = context.records.cluster(inventory.cluster)
        if record is not None and _is_unchecked(record, inventory):
            checked = replace(record, lifecycle=replace(record.lifecycle, nodes_unchecked=False))
            context.records.save_cluster(checked, context.clock.now())


def _is_unchecked(record: ClusterRecord | None, inventory: Inventory) -> bool:
    """Return True if the record is of these nodes, not of a later cluster with the same name."""
    ids = {node.instance_id for node in inventory.nodes}
    return record is not None and record.lifecycle.nodes_unchecked and ids == set(record.placement.instance_ids)
