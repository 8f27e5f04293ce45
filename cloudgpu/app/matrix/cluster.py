"""The single cluster of a matrix.

It either exists already, or is created before the first run and deleted after the last.
"""

from dataclasses import replace

from cloudgpu.app.clusters.factory import ClusterCreator, cluster_deleter
from cloudgpu.app.matrix.request import MatrixRequest
from cloudgpu.app.runs.ownership import delete_or_wait
from cloudgpu.backends.context import Context
from cloudgpu.backends.reuse import matches, require_all_nodes_running
from cloudgpu.errors import StateError, UsageError
from cloudgpu.plan.plan import Plan
from cloudgpu.run.progress import Note
from cloudgpu.state.matrix_records import MatrixRecord, MatrixRecords
from cloudgpu.state.records import ClusterRecord
from cloudgpu.text import command


class MatrixCluster:
    """Creates and deletes the cluster of one matrix."""

    def __init__(self, context: Context, matrices: MatrixRecords, provisioning: ClusterCreator) -> None:
        self._context = context
        self._matrices = matrices
        self._provisioning = provisioning
        self._cluster_deleter = cluster_deleter(context)

    def own(self, record: MatrixRecord) -> ClusterRecord | None:
        """Return the cluster that the matrix created, until its deletion is confirmed."""
        present = self._context.records.cluster(record.cluster) if record.made and record.cluster else None
        return present if present is not None and record.token in ("", present.token) else None

    def up(self, record: MatrixRecord, request: MatrixRequest) -> MatrixRecord:
        """Create the cluster, or use the existing one.

        Raises:
            UsageError: The named cluster does not match, or the matrix has another cluster.
            NoCapacityError: No candidate had capacity.
            CloudGpuError: The cluster cannot be created. Its resources are deleted, or listed in the error.
        """
        plan, mine = request.plan.lead.plan, self.own(record)
        if mine is not None and request.cluster not in ("", mine.name):
            message = f"matrix {record.name} has cluster {mine.name}, which is {mine.state}"
            raise UsageError(message, hint=f"leave --cluster out, or `{command('cloudgpu', 'down', mine.name)}` first")
        if mine is not None and self._over(mine):
            self._context.emit(Note(f"cluster {mine.name} has expired: deleting it and creating another one"))
            record, mine = self.end(record, mine), None
        if mine is not None and mine.state == "up":
            self._context.emit(Note(f"using cluster {mine.name}, which is up until {mine.expires_at:%H:%M} UTC"))
            self._provisioning.reuse(mine.name, plan)
            return record
        name = mine.name if mine is not None else self.name(record, request)
        present = self._context.records.cluster(name)
        made = mine is not None or present is None
        # Whose it is stands in the record before the first call: whoever is killed from here on ends it again.
        record = self._matrices.save(replace(record, cluster=name, made=made, token="" if made else record.token))
        provisioned = self._provisioning.up(
            plan, name, keep_on_failure=request.keep_on_failure, retry_s=request.retry_s
        )
        return self._matrices.save(replace(record, token=provisioned.record.token))

    def name(self, record: MatrixRecord, request: MatrixRequest) -> str:
        """Return the named cluster, else one with the recipe's name as in `train`, else the matrix's own."""
        return request.cluster or find_matching_cluster(self._context, request.plan.lead.plan) or record.name

    def end(self, record: MatrixRecord, present: ClusterRecord) -> MatrixRecord:
        """End the matrix's own cluster, and write down what it came to.

        Raises:
            CloudGpuError: It could not be ended.
        """
        ended = delete_or_wait(self._context, self._cluster_deleter, present)
        usd = str(ended.usd) if ended is not None else "0"
        return self._matrices.save(replace(record, spent={**(record.spent or {}), present.token: usd}))

    def _over(self, present: ClusterRecord) -> bool:
        if present.state == "ending" or present.expires_at <= self._context.clock.now():
            return True
        if present.state != "up":
            return False
        try:
            require_all_nodes_running(self._context, present)
        except StateError as err:
            self._context.emit(Note(err.message))
            return True
        return False


def find_matching_cluster(context: Context, plan: Plan) -> str:
    """Return the running cluster with the recipe's name if it matches the plan; empty if there is none."""
    alike = context.records.cluster(plan.recipe.name)
    if alike is None or (alike.state, alike.target) != ("up", plan.target):
        return ""
    return alike.name if alike.expires_at > context.clock.now() and matches(plan, alike) else ""
