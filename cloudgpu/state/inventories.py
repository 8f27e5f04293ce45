"""Read and write the recorded nodes of a cluster."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from cloudgpu.errors import StateError
from cloudgpu.launch.inventory import Inventory
from cloudgpu.paths import Home
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.documents import StateFile
from cloudgpu.state.record_store import RecordStore
from cloudgpu.state.run_record import RunRecord
from cloudgpu.text import command

INVENTORY: Final = StateFile("node inventory", Inventory, encode=Inventory.as_json)
_FIRST_BOOT: Final = timedelta(minutes=15)
"""Cluster age at which every node is assumed to have completed its first boot.

Until then, a node may reject logins because it has not created the login user yet.
"""


def mark_booted_nodes(records: RecordStore, inventory: Inventory, now: datetime) -> Inventory:
    """Mark the nodes as booted if the cluster is old enough or a run has started ranks on it."""
    record = records.last_known(inventory.cluster)
    if record is None:
        return inventory
    ran = any(_ran_on(run, record) for run in records.runs())
    if not ran and now - record.identity.created_at < _FIRST_BOOT:
        return inventory
    return replace(inventory, nodes=tuple(replace(node, booted=True) for node in inventory.nodes))


def _ran_on(run: RunRecord, cluster: ClusterRecord) -> bool:
    """Return True if the run started ranks on this cluster, not on an earlier cluster with the same name."""
    same_cluster = run.run_id == cluster.identity.run_id or run.started_at >= cluster.identity.created_at
    return run.cluster == cluster.name and bool(run.ranks) and same_cluster


def stored_inventory(home: Home, record: ClusterRecord) -> Inventory:
    """Return the nodes of a cluster as last recorded."""
    path = home.cluster(record.name).inventory
    try:
        return INVENTORY.read(path)
    except (OSError, ValueError) as err:
        message = f"the inventory {path} cannot be read: {err}"
        raise StateError(message, hint=command("cloudgpu", "down", record.name)) from err


def save_inventory(home: Home, cluster: str, inventory: Inventory) -> None:
    """Write the nodes of a cluster durably."""
    INVENTORY.write(home.cluster(cluster).inventory, inventory)
