"""Read the recorded nodes of a cluster."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from cloudgpu import files
from cloudgpu.decoding import MALFORMED
from cloudgpu.errors import StateError
from cloudgpu.launch.inventory import Inventory
from cloudgpu.paths import Home
from cloudgpu.state.cluster_and_run_records import ClusterRecord, RecordStore, RunRecord
from cloudgpu.text import command

_FIRST_BOOT: Final = timedelta(minutes=15)
"""Longer than any first boot takes: after it, a node that refuses a login does not wait for its user to be created."""


def with_known_boots(records: RecordStore, inventory: Inventory, now: datetime) -> Inventory:
    """Mark the nodes whose first boot is over: the cluster is old enough, or a run has started ranks on it."""
    record = records.last_known(inventory.cluster)
    if record is None:
        return inventory
    ran = any(_ran_on(run, record) for run in records.runs())
    if not ran and now - record.created_at < _FIRST_BOOT:
        return inventory
    return replace(inventory, nodes=tuple(replace(node, booted=True) for node in inventory.nodes))


def _ran_on(run: RunRecord, cluster: ClusterRecord) -> bool:
    """Return True if the run started ranks on this very cluster, and not on an earlier one of its name."""
    this_one = run.run_id == cluster.run_id or run.started_at >= cluster.created_at
    return run.cluster == cluster.name and bool(run.ranks) and this_one


def stored_inventory(home: Home, record: ClusterRecord) -> Inventory:
    """Return the nodes as last recorded.

    Raises:
        StateError: The file is missing or damaged.
    """
    path = home.cluster(record.name).inventory
    try:
        return Inventory.from_json(files.read_json(path))
    except (OSError, *MALFORMED) as err:
        message = f"the inventory {path} cannot be read: {err}"
        raise StateError(message, hint=command("cloudgpu", "down", record.name)) from err
