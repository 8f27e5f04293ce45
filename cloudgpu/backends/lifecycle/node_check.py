"""Record whether the nodes of a cluster have been checked since their launch.

An `up` that was killed while the nodes were still booting has recorded a running cluster. The next one must wait for
the bootstrap, too.
"""

from contextlib import suppress
from dataclasses import replace

from cloudgpu.backends.base import Context
from cloudgpu.backends.lifecycle.cluster_lease import hold_lease
from cloudgpu.errors import BusyError
from cloudgpu.launch.inventory import Inventory
from cloudgpu.state.cluster_record import ClusterRecord


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
