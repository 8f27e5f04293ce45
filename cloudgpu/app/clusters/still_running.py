"""Report what a command leaves behind when it is killed by a signal: clusters, their prices and runs, and storage."""

from collections.abc import Collection, Iterator, Sequence

from cloudgpu.backends.billing.costs import cluster_hourly_usd
from cloudgpu.backends.sweep.cluster_resources import ClusterResources
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.record_store import RecordStore
from cloudgpu.state.run_record import RunRecord
from cloudgpu.state.storage_records import StorageRecords
from cloudgpu.targets import traits
from cloudgpu.text import command, plural, printable

NOTHING_RUNNING = "nothing that this command started is still running"


class StillRunning:
    """Lists the clusters and runs that a command leaves running. Reads only local records, so it works offline.

    The list contains the clusters recorded since this object was created, and the clusters listed in `clusters`.
    """

    def __init__(self, records: RecordStore, clusters: Collection[str] = ()) -> None:
        self._records = records
        self._named = frozenset(clusters)
        self._before = frozenset(record.name for record in records.clusters())

    def lines(self) -> list[str]:
        """Return the remaining clusters and runs with their hourly cost and the commands to manage them."""
        clusters = [
            cluster
            for cluster in self._records.clusters()
            if cluster.name in self._named or cluster.name not in self._before
        ]
        runs = [run for run in self._records.runs() if run.ended_at is None and run.ranks]
        lines = [
            line for cluster in clusters for line in _of(cluster, [run for run in runs if run.cluster == cluster.name])
        ]
        return lines or [NOTHING_RUNNING]


def storage_lines(records: StorageRecords, name: str) -> list[str]:
    """Return lines with the state of storage that was being created or deleted, and the command that deletes it."""
    record = records.get(name)
    if record is None:
        return [NOTHING_RUNNING]
    states = {"making": "may be partly created", "ready": "exists", "deleting": "may still exist"}
    price = "simulated, nothing is charged" if record.simulated else "it costs money until it is deleted"
    return [
        f"storage {printable(name)} {states[record.state]} in {record.region}: {price}",
        f"    delete it: {command('cloudgpu', 'storage', 'delete', name)}",
    ]


def swept_clusters_lines(clusters: Sequence[ClusterResources], again: str) -> list[str]:
    """Return lines for the clusters whose deletion by `sweep` was not confirmed, and the command that deletes them."""
    lines = [
        f"cluster {printable(cluster.cluster)} may still exist in {', '.join(cluster.regions)}" for cluster in clusters
    ]
    return [*lines, f"    delete them: {again}"] if lines else [NOTHING_RUNNING]


def _of(cluster: ClusterRecord, runs: Collection[RunRecord]) -> Iterator[str]:
    for run in runs:
        finished = f"has finished ({run.state}); its outputs may still be on the nodes"
        state = finished if run.judged else "may still be running"
        yield f"run {run.run_id} {state}"
        yield f"    follow it: {command('cloudgpu', 'attach', run.run_id)}"
        if not run.judged:
            yield f"    stop it:   {command('cloudgpu', 'cancel', run.run_id)}"
    yield f"cluster {printable(cluster.name)} {_state(cluster)}"
    yield f"    delete it: {command('cloudgpu', 'down', cluster.name)}"


def _state(cluster: ClusterRecord) -> str:
    if cluster.state == "damaged":
        return "has a record that cannot be read; its nodes may still be running"
    states = {"up": "is running", "making": "may be partly created", "ending": "may still exist"}
    until = f"{cluster.lifecycle.expires_at:%Y-%m-%d %H:%M} UTC"
    return f"{states[cluster.state]}: {_price(cluster)}, until it expires at {until}"


def _price(cluster: ClusterRecord) -> str:
    if not traits(cluster.identity.target).launches:
        return f"{plural(cluster.placement.nodes, 'self-managed host')}, no charge"
    nodes = f"{cluster.placement.nodes} x {cluster.placement.instance_type or 'unknown type'}"
    hourly = cluster_hourly_usd(cluster)
    if not hourly:
        return f"{nodes}, price unknown"
    return f"{nodes}, ${hourly:.2f} an hour{' (simulated, nothing is charged)' if cluster.simulated else ''}"
