"""Hold the lease on a cluster while an operation changes the cluster."""

from collections.abc import Iterator
from contextlib import contextmanager

from cloudgpu.backends.base import Context
from cloudgpu.engine.lease import ClusterLease
from cloudgpu.run.progress import Note


def cluster_lease(context: Context, name: str) -> ClusterLease:
    """Return the lease on a cluster."""
    return ClusterLease(context.home.cluster(name).lease, context.clock, context.owner)


@contextmanager
def hold_lease(context: Context, name: str) -> Iterator[None]:
    """Hold the lease on a cluster while the `with` block runs."""
    with cluster_lease(context, name).hold(tidy=True):
        yield


@contextmanager
def hold_lease_to_delete(context: Context, name: str) -> Iterator[None]:
    """Hold the lease on a cluster, or continue without the lease if the state home cannot be written."""
    with cluster_lease(context, name).hold(tidy=True, required=False) as lease:
        if lease.problem:
            context.emit(Note(f"{lease.problem}; deleting cluster {name} anyway"))
        yield
