"""Let the caller's current address connect to the nodes of a cluster."""

from cloudgpu.backends.base import Context
from cloudgpu.backends.lifecycle.deletion import check_identity
from cloudgpu.errors import CloudGpuError
from cloudgpu.run.progress import Note
from cloudgpu.state.cluster_record import ClusterRecord


def authorize_if_possible(context: Context, record: ClusterRecord) -> ClusterRecord:
    """Authorize SSH from the caller's address, and return the updated record.

    If that fails, emit a note and return the record unchanged.
    """
    try:
        check_identity(record, context.backend)
        return context.clusters.authorize(record)
    except CloudGpuError as err:
        context.emit(Note(f"cannot authorize SSH from your address to cluster {record.name}: {err.message}"))
        return record
