"""Nodes that do not answer during a run: the cloud is asked whether they still exist, and a person is told."""

import contextlib
from collections.abc import Mapping

from cloudgpu.backends.context import Context
from cloudgpu.backends.reuse import ALIVE
from cloudgpu.errors import CloudGpuError, ConnectError, RemoteCommandError
from cloudgpu.launch.inventory import Node
from cloudgpu.run.progress import Note
from cloudgpu.state.records import ClusterRecord, RunRecord


class UnreachableNodes:
    """The cloud's word on the nodes of one run.

    It goes by the cluster as it was known last: whoever ends a cluster deletes its record, perhaps before we notice.
    """

    def __init__(self, context: Context, record: RunRecord) -> None:
        self._context = context
        self._record = record
        self._known: ClusterRecord | None = None
        self._cluster()

    def __call__(self, node: Node, trouble: ConnectError | RemoteCommandError) -> None:
        """Tell of a node that does not answer.

        Raises:
            ConnectError: It is gone, so nobody needs to wait for it.
        """
        state = self._states().get(node.instance_id, "")
        if state and state not in ALIVE:
            message = f"node {node.index} ({node.instance_id}) is {state}{self._expired()}"
            raise ConnectError(message, hint="what it held is lost")
        self._context.emit(Note(f"does not answer, trying again: {trouble.message}", node.index))

    def all_gone(self) -> bool:
        """Whether the cloud says that no node of the run is left; not knowing is no."""
        states = self._states()
        return bool(states) and not any(state in ALIVE for state in states.values())

    def _states(self) -> Mapping[str, str]:
        """Instance id -> state, empty where nobody can say."""
        cluster = self._cluster()
        try:
            return self._context.cloud.nodes_alive(cluster.region, cluster.instance_ids) if cluster else {}
        except CloudGpuError:
            return {}

    def _cluster(self) -> ClusterRecord | None:
        with contextlib.suppress(CloudGpuError):
            self._known = self._context.records.cluster(self._record.cluster) or self._known
        return self._known

    def _expired(self) -> str:
        cluster = self._cluster()
        if cluster is None or cluster.expires_at > self._context.clock.now():
            return ""
        return f": the cluster expired at {cluster.expires_at:%Y-%m-%d %H:%M} UTC"
