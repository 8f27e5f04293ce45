"""Choose which resources a command reports as still running if a signal interrupts it."""

from collections.abc import Sequence

from cloudgpu.app.clusters.status import StillRunning, storage_lines, swept_clusters_lines
from cloudgpu.backends.sweep import ClusterResources
from cloudgpu.cli.terminal.interruption import interruptions
from cloudgpu.state.record_store import RecordStore
from cloudgpu.state.storage_records import StorageRecords


def report_clusters_on_signal(records: RecordStore, *clusters: str) -> None:
    """After a signal, report these clusters and any clusters that the command has created, if still recorded."""
    interruptions.tell(StillRunning(records, clusters).lines)


def report_storage_on_signal(records: StorageRecords, name: str) -> None:
    """After a signal, report whether this storage still exists."""
    interruptions.tell(lambda: storage_lines(records, name))


def report_sweep_on_signal(clusters: Sequence[ClusterResources], again: str) -> None:
    """After a signal, report that these clusters might still exist, and print the command that deletes them."""
    interruptions.tell(lambda: swept_clusters_lines(clusters, again))
