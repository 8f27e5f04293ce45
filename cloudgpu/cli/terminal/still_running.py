"""Choose what the command reports as still running after a signal."""

from collections.abc import Sequence

from cloudgpu.app.clusters.still_running import StillRunning, storage_lines, swept_clusters_lines
from cloudgpu.backends.sweep.cluster_resources import ClusterResources
from cloudgpu.cli.terminal.signals import interruptions
from cloudgpu.state.cluster_and_run_records import RecordStore
from cloudgpu.state.storage_records import StorageRecords


def report_clusters_on_signal(records: RecordStore, *clusters: str) -> None:
    """After a signal, report which clusters are still running: these and any that the command creates."""
    interruptions.tell(StillRunning(records, clusters).lines)


def report_storage_on_signal(records: StorageRecords, name: str) -> None:
    """After a signal, report the state of this storage."""
    interruptions.tell(lambda: storage_lines(records, name))


def report_sweep_on_signal(clusters: Sequence[ClusterResources]) -> None:
    """After a signal, report which of these clusters might still exist."""
    interruptions.tell(lambda: swept_clusters_lines(clusters))
