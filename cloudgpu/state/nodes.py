"""The recorded nodes of a cluster, and what failed nodes printed: console output and bootstrap log.

The logs come from nodes, so they are bounded and printable. Saving them never hides the failure itself.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cloudgpu import files
from cloudgpu.errors import StateError
from cloudgpu.launch.inventory import Inventory
from cloudgpu.paths import Home
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.documents import StateFile
from cloudgpu.state.record_store import RecordStore
from cloudgpu.state.run_records import RunRecord
from cloudgpu.text import command, printable

INVENTORY: Final = StateFile("node inventory", Inventory, encode=Inventory.as_json)
MOST_NODES = 8
"""Number of failed nodes whose logs are saved."""
MOST_BYTES = 256 * 1024
"""Size limit of one saved file; the end of a longer text is kept. EC2 returns at most 64 KiB of a console."""
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


def node_log(folder: Path, index: int, what: str) -> Path:
    """Return the path of a saved log: `nodes/node-0-console.log` below the folder of the run or cluster."""
    return folder / "nodes" / f"node-{index}-{what}.log"


def save_node_log(path: Path, text: str) -> Path | None:
    """Write a log and return its path, or None if there is nothing to save or the file cannot be written."""
    lines = text[-MOST_BYTES:].replace("\r\n", "\n").replace("\r", "\n").splitlines()
    kept = "".join(f"{printable(line)}\n" for line in lines).encode()[-MOST_BYTES:].decode(errors="ignore").encode()
    if not kept.strip():
        return None
    try:
        files.make_private_directory(path.parent)
        files.replace(path, kept, durable=False)
    except OSError:
        return None
    return path


def mention(hint: str, saved: list[Path]) -> str:
    """Return a hint that begins with the saved files: both of a single node, or the folder of several nodes."""
    if not saved:
        return hint
    single = len({path.name.split("-")[1] for path in saved}) == 1
    files = " and ".join(command(str(path)) for path in saved)
    where = files if single else f"the {len(saved)} files in {command(str(saved[0].parent))}"
    return f"read {where}; {hint}" if hint else f"read {where}"
