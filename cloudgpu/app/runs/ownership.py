"""Handle a run whose cluster another process is deleting."""

from dataclasses import replace

from cloudgpu.backends.base import Context
from cloudgpu.backends.lifecycle.credential_wait import CredentialWait
from cloudgpu.backends.lifecycle.results import DeletionResult
from cloudgpu.errors import BusyError, StateError
from cloudgpu.run.progress import Note
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.run_record import CLUSTER_DELETED, RunRecord

_POLL_S = 1.0
_TIMEOUT_S = 1200.0
"""Longest wait for another process. AWS takes minutes to terminate the largest instances and a NAT gateway."""


def cancelled_by_deletion(record: RunRecord, cluster: ClusterRecord | None) -> RunRecord:
    """Return the run, marked as cancelled if it failed only because its cluster was deleted.

    If a rank reported a failure, the run remains `failed`, because the rank failed before the deletion.
    """
    ending = cluster is None or cluster.state == "ending"
    has_no_cause = record.state == "lost" or (record.state == "failed" and record.failed_rank is None)
    return (
        replace(record, state="cancelled", reason=CLUSTER_DELETED)
        if ending and has_no_cause and record.ranks
        else record
    )


def delete_or_wait(context: Context, cluster: ClusterRecord) -> DeletionResult | None:
    """Delete a cluster, or wait for another process that is deleting it. If that process dies, delete the cluster here.

    Returns:
        The result, or None if another process has deleted the cluster.

    Raises:
        BusyError: Another process is using the cluster without deleting it, or has not deleted it within 20 minutes.
        CloudGpuError: The cluster cannot be deleted; see `ClusterOperations.delete`.
    """
    deadline = context.clock.monotonic() + _TIMEOUT_S
    reported = False
    while (present := _present(context, cluster)) is not None:
        try:
            return delete_with_new_credentials(context, cluster)
        except BusyError as err:
            if present.state != "ending" or context.clock.monotonic() > deadline:
                raise
            if not reported:
                context.emit(Note(f"{err.message}; waiting until that process has deleted the cluster"))
            reported = True
        context.clock.sleep(_POLL_S)
    return None


def delete_with_new_credentials(context: Context, cluster: ClusterRecord) -> DeletionResult:
    """Delete a cluster. If the credentials have expired, wait until the user has renewed them.

    Raises:
        CloudGpuError: The cluster cannot be deleted; see `ClusterOperations.delete`.
    """
    wait = CredentialWait(context.clock, context.emit, cluster.lifecycle.expires_at)
    return wait.retry(lambda: context.clusters.delete(cluster.name, cluster.placement.region))


def _present(context: Context, cluster: ClusterRecord) -> ClusterRecord | None:
    """Return the stored record, or None if the cluster is deleted.

    If the stored record is unreadable, return the given record, because `down` can still find the cluster by its tag.
    """
    try:
        return context.records.cluster(cluster.name)
    except StateError:
        return cluster
