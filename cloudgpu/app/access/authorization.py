"""Let the caller's current address connect to the nodes of a cluster."""

from cloudgpu.backends.base import Context
from cloudgpu.backends.lifecycle.deletion import check_identity
from cloudgpu.errors import CloudGpuError
from cloudgpu.run.progress import Note
from cloudgpu.state.cluster_and_run_records import ClusterRecord


def authorize_if_possible(context: Context, record: ClusterRecord) -> ClusterRecord:
    """Authorize the caller's address, and report a failure as a note instead of raising it."""
    try:
        check_identity(record, context.backend)
        return context.clusters.authorize(record)
    except CloudGpuError as err:
        context.emit(Note(f"SSH access to cluster {record.name} is unchanged: {err.message}"))
        return record
