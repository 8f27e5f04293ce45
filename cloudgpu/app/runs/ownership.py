"""A run whose cluster another process ends: what that makes of the run, and who confirms the end."""

from dataclasses import replace

from cloudgpu.app.clusters.factory import ClusterDeleter
from cloudgpu.backends.context import Context
from cloudgpu.backends.deletion import Ended
from cloudgpu.errors import BusyError, StateError
from cloudgpu.run.progress import Note
from cloudgpu.state.records import ClusterRecord, RunRecord

_LOOK_S = 1.0
_LONGEST_S = 1200.0
"""AWS takes minutes to end the largest instances and a NAT gateway; who waits longer should be told why."""
ENDED = "its cluster was ended"


def cancelled_by_deletion(record: RunRecord, cluster: ClusterRecord | None) -> RunRecord:
    """The run as cancelled, where it went wrong only because somebody was ending its cluster meanwhile.

    A rank that failed by itself did so before, and stays the reason.
    """
    ending = cluster is None or cluster.state == "ending"
    nameless = record.state == "lost" or (record.state == "failed" and record.failed_rank is None)
    return replace(record, state="cancelled", reason=ENDED) if ending and nameless and record.ranks else record


def delete_or_wait(context: Context, teardown: ClusterDeleter, cluster: ClusterRecord) -> Ended | None:
    """End a cluster. Where another process is ending it, that one's confirmation is awaited; if it dies, we go on.

    Returns what came of it, None where another process has ended it.

    Raises:
        BusyError: Another process is at it and does not end it, or not in twenty minutes.
        CloudGpuError: As `Teardown.down` says.
    """
    deadline = context.clock.monotonic() + _LONGEST_S
    told = False
    while (present := _present(context, cluster)) is not None:
        try:
            return teardown.down(cluster.name, cluster.region)
        except BusyError as err:
            if present.state != "ending" or context.clock.monotonic() > deadline:
                raise
            if not told:
                context.emit(Note(f"{err.message}, and is ending it: waiting for its confirmation"))
            told = True
        context.clock.sleep(_LOOK_S)
    return None


def _present(context: Context, cluster: ClusterRecord) -> ClusterRecord | None:
    """As recorded now; as it was where that cannot be read, for `down` finds it by its tags then."""
    try:
        return context.records.cluster(cluster.name)
    except StateError:
        return cluster
