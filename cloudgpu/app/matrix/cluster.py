"""Provide the cluster of a matrix: an existing cluster, or a new cluster that is deleted after the last run."""

from dataclasses import replace

from cloudgpu.app.matrix.outcome import cluster_usd
from cloudgpu.app.matrix.planner import MatrixRequest
from cloudgpu.app.runs.concurrency import delete_or_wait
from cloudgpu.backends.base import Context
from cloudgpu.backends.lifecycle.launch_request import Requester
from cloudgpu.backends.lifecycle.reuse import matches, require_all_nodes_running
from cloudgpu.errors import StateError, UsageError
from cloudgpu.plan.plan import Plan
from cloudgpu.run.progress import Note
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.run_records import MatrixRecord, MatrixRecords
from cloudgpu.text import command


class MatrixCluster:
    """Creates and deletes the cluster of one matrix."""

    def __init__(self, context: Context, matrices: MatrixRecords, requester: Requester) -> None:
        self._context = context
        self._matrices = matrices
        self._requester = requester

    def created(self, record: MatrixRecord) -> ClusterRecord | None:
        """Return the cluster that the matrix created, or None if it created no cluster or the cluster is deleted."""
        cluster = self._context.records.cluster(record.cluster) if record.made and record.cluster else None
        return cluster if cluster is not None and record.token in ("", cluster.identity.token) else None

    def up(self, record: MatrixRecord, request: MatrixRequest) -> MatrixRecord:
        """Create the cluster, or use a running cluster.

        Raises:
            UsageError: The requested cluster does not match the plan, or the matrix already created another cluster.
            NoCapacityError: No candidate has capacity.
            CloudGpuError: The cluster cannot be created. Its resources have been deleted, or the error names them.
        """
        plan, created = request.plan.lead.plan, self.created(record)
        if created is not None and request.cluster not in ("", created.name):
            message = f"matrix {record.name} already has cluster {created.name} in state {created.state}"
            raise UsageError(
                message, hint=f"omit --cluster, or run `{command('cloudgpu', 'down', created.name)}` first"
            )
        if created is not None and self._is_unusable(created):
            self._context.emit(
                Note(f"cluster {created.name} can no longer be used; deleting it and creating a new one")
            )
            record, created = self.end(record, created), None
        if created is not None and created.state == "up":
            self._context.emit(
                Note(f"using cluster {created.name}, which is running until {created.lifecycle.expires_at:%H:%M} UTC")
            )
            self._context.clusters.reuse(created.name, plan)
            return record
        name = created.name if created is not None else self.name(record, request)
        is_new = created is not None or self._context.records.cluster(name) is None
        # Record the ownership before the first API call. If this process is killed, a later command then deletes the
        # cluster.
        record = self._matrices.save(replace(record, cluster=name, made=is_new, token="" if is_new else record.token))
        provisioned = self._context.clusters.create(
            plan, name, self._requester, keep_on_failure=request.keep_on_failure, retry_s=request.retry_s
        )
        return self._matrices.save(replace(record, token=provisioned.record.identity.token))

    def name(self, record: MatrixRecord, request: MatrixRequest) -> str:
        """Return the requested cluster name or, without one, the recipe's name if a running cluster can be reused.

        If neither applies, return the matrix's own name.
        """
        return request.cluster or find_matching_cluster(self._context, request.plan.lead.plan) or record.name

    def end(self, record: MatrixRecord, cluster: ClusterRecord) -> MatrixRecord:
        """Delete the cluster that the matrix created, and record its cost.

        Raises:
            CloudGpuError: The cluster cannot be deleted.
        """
        ended = delete_or_wait(self._context, cluster)
        token, now = cluster.identity.token, self._context.clock.now()
        # If another process deleted the cluster, that process recorded the cost in the ledger.
        usd = ended.usd if ended is not None else cluster_usd(self._context.ledger, cluster.name, token, now)
        return self._matrices.save(replace(record, spent={**(record.spent or {}), token: str(usd)}))

    def _is_unusable(self, cluster: ClusterRecord) -> bool:
        if cluster.state == "ending" or cluster.lifecycle.expires_at <= self._context.clock.now():
            return True
        if cluster.state != "up":
            return False
        try:
            require_all_nodes_running(self._context, cluster)
        except StateError as err:
            self._context.emit(Note(err.message))
            return True
        return False


def find_matching_cluster(context: Context, plan: Plan) -> str:
    """Return the recipe's name if an unexpired, running cluster of that name matches the plan; otherwise empty."""
    cluster = context.records.cluster(plan.recipe.name)
    if cluster is None or (cluster.state, cluster.identity.target) != ("up", plan.target):
        return ""
    return cluster.name if cluster.lifecycle.expires_at > context.clock.now() and matches(plan, cluster) else ""
