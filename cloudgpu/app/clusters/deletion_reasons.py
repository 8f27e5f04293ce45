"""Decide from the local records whether deleting a cluster needs a confirmation: another owner, or a run in progress.

The check must never prevent a deletion: whatever cannot be read is treated as no reason to ask, and no cloud, node or
ledger is queried.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from cloudgpu.backends.billing.costs import cluster_hourly_usd
from cloudgpu.errors import CloudGpuError
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.record_store import RecordStore
from cloudgpu.state.run_record import RunRecord
from cloudgpu.targets import traits
from cloudgpu.text import printable


@dataclass(frozen=True)
class DeletionReasons:
    """The reasons why the caller must confirm the deletion of one cluster.

    Attributes:
        other_owner: The cluster's owner if that is not the caller, otherwise empty.
        runs: Runs that may still be in progress on the cluster, oldest first.
    """

    cluster: ClusterRecord
    other_owner: str
    runs: tuple[RunRecord, ...]

    def lines(self) -> tuple[str, ...]:
        """Return a line with the cluster's owner and price per hour, and one line for each run with its owner."""
        cluster = self.cluster
        first = f"cluster {printable(cluster.name)} belongs to {printable(cluster.identity.owner)}; {_price(cluster)}"
        return (first, *(f"run {run.run_id} of {printable(run.owner)} is in progress on it" for run in self.runs))


def deletion_reasons(
    records: RecordStore, names: Sequence[str], caller: str, now: datetime
) -> tuple[DeletionReasons, ...]:
    """Return the clusters whose deletion must be confirmed, with the reasons. Empty if the records cannot be read.

    Nothing is asked about a cluster that has expired, or whose deletion has already begun.
    """
    found: list[DeletionReasons] = []
    # Damaged or impossible records must not prevent the deletion.
    with suppress(CloudGpuError, OSError, ValueError, ArithmeticError):
        runs = [run for run in records.runs() if run.ranks and not run.judged and run.ended_at is None]
        for name in names:
            cluster = records.last_known(name)
            if cluster is None or cluster.state in ("ending", "damaged") or cluster.lifecycle.expires_at <= now:
                continue
            owner = cluster.identity.owner
            reasons = DeletionReasons(
                cluster, owner if owner not in ("", caller) else "", tuple(run for run in runs if run.cluster == name)
            )
            found += [reasons] if reasons.other_owner or reasons.runs else []
    return tuple(found)


def _price(cluster: ClusterRecord) -> str:
    if not traits(cluster.identity.target).launches:
        return "no charge"
    try:
        hourly = cluster_hourly_usd(cluster)
    except (ValueError, ArithmeticError):
        hourly = None
    if not hourly:
        return "price unknown"
    return f"${hourly:,.2f} an hour{' (simulated)' if cluster.simulated else ''}"
