"""Query the cloud about nodes that do not respond during a run, to find out whether they still exist."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cloudgpu.app.runs.datasets import has_checkpoint
from cloudgpu.app.runs.lost_nodes import is_spot, node_words, what_is_lost, why_terminated
from cloudgpu.backends.base import Context
from cloudgpu.errors import CloudGpuError, ConnectError, RemoteCommandError
from cloudgpu.launch.inventory import ALIVE_STATES, Node
from cloudgpu.run.agent_messages import Verdict
from cloudgpu.run.progress import Note
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.run_records import RunRecord


class UnreachableNodes:
    """Looks up the state of a run's nodes.

    Uses the last known cluster record, because another process may delete the cluster and its record during the run.
    """

    def __init__(self, context: Context, record: RunRecord) -> None:
        self._context = context
        self._record = record
        self._known: ClusterRecord | None = None
        self._reported = False
        self._cluster()

    def __call__(self, node: Node, trouble: ConnectError | RemoteCommandError) -> None:
        """Report a node that does not respond."""
        state = self._states().get(node.instance_id, "")
        if state and state not in ALIVE_STATES:
            what = f"{node_words(self._cluster())} {node.index} ({node.instance_id}) is {state}"
            hint = what_is_lost(self._record, uploaded=has_checkpoint(self._record, self._context.backend))
            raise ConnectError(f"{what}{self._why()}", hint=hint)
        self._context.emit(Note(f"not responding, retrying: {trouble.message}", node.index))

    def all_terminated(self) -> bool:
        """Return True if the cloud confirms that no node of the run is pending or running."""
        states = self._states()
        return bool(states) and not any(state in ALIVE_STATES for state in states.values())

    def judged(self, verdict: Verdict, nodes: Sequence[Node]) -> Verdict:
        """Return the final status. A run that failed while spot nodes were interrupted is lost.

        When a node disappears, the ranks on the other nodes fail, so their exit codes are not the reason.

        Args:
            verdict: The final status as the nodes reported it.
            nodes: The nodes that were running when the run was followed. A node that was terminated before then may
                have been interrupted after the run failed.
        """
        cluster = self._current()
        if verdict.state != "failed" or cluster is None or not is_spot(cluster) or cluster.state == "ending":
            return verdict
        if cluster.lifecycle.expires_at <= self._context.clock.now():
            return verdict
        states = self._states()
        lost = [node for node in nodes if states.get(node.instance_id, "running") not in ALIVE_STATES]
        if not lost:
            return verdict
        names = [f"{node.index} ({node.instance_id})" for node in lost]
        what = f"spot node {names[0]} is" if len(names) == 1 else f"spot nodes {', '.join(names)} are"
        why = why_terminated(self._context, cluster)
        return replace(verdict, state="lost", reason=f"{what} terminated, {why}")

    def _states(self) -> Mapping[str, str]:
        """Return the state of each instance, or an empty mapping if the cloud cannot be queried."""
        cluster = self._cluster()
        try:
            return (
                self._context.backend.instance_states(cluster.placement.region, cluster.placement.instance_ids)
                if cluster
                else {}
            )
        except CloudGpuError as err:
            if err.renewable and not self._reported:
                self._reported = True
                self._context.emit(Note(f"{err.message}; the run continues. To renew the credentials: {err.hint}"))
            return {}

    def _cluster(self) -> ClusterRecord | None:
        self._known = self._current() or self._known
        return self._known

    def _current(self) -> ClusterRecord | None:
        """Return the stored record; None if the cluster is deleted or the record cannot be read."""
        with contextlib.suppress(CloudGpuError):
            return self._context.records.cluster(self._record.cluster)
        return None

    def _why(self) -> str:
        cluster = self._cluster()
        if cluster is None or cluster.lifecycle.expires_at > self._context.clock.now():
            why = why_terminated(self._context, cluster)
            return f", {why}" if why else ""
        return f": the cluster expired at {cluster.lifecycle.expires_at:%Y-%m-%d %H:%M} UTC"
