"""`down` for several clusters: select them, decide whether to ask for confirmation, and delete them concurrently.

The check must never prevent a deletion: whatever cannot be read is treated as no reason to ask, and no cloud, node
or ledger is queried.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from cloudgpu.backends.base import Context
from cloudgpu.backends.billing.costs import cluster_hourly_usd
from cloudgpu.backends.lifecycle.results import DeletionResult, leftover_lines
from cloudgpu.errors import CloudGpuError, LedgerError, StateError, TeardownError, UsageError
from cloudgpu.run.progress import Emit, Note, ProgressEvent
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.record_store import RecordStore
from cloudgpu.state.run_records import RunRecord
from cloudgpu.targets import traits
from cloudgpu.text import command, printable
from cloudgpu.workers import Workers

_AT_ONCE = 8
"""Maximum number of concurrent cluster deletions. Each deletion also processes its resources in parallel."""
ContextOf = Callable[[str], Context]
"""Function that returns the deletion context of a cluster. It may be called by several threads."""


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


@dataclass(frozen=True)
class ClusterSelection:
    """The selected clusters.

    Attributes:
        asked: Whether the caller explicitly specified every cluster, so that no confirmation is needed.
    """

    names: tuple[str, ...]
    asked: bool


@dataclass(frozen=True)
class TeardownResults:
    """The results of several deletions: the deleted clusters, and the errors of the failed deletions."""

    ended: tuple[DeletionResult, ...]
    failed: tuple[tuple[str, CloudGpuError], ...] = ()
    unrecorded: tuple[tuple[str, CloudGpuError], ...] = ()
    """Clusters that were verified as deleted, but whose deletion could not be recorded."""

    @property
    def left(self) -> tuple[str, ...]:
        """One line per remaining resource, prefixed with the cluster's name.

        An error that lists no remaining resources contributes its message instead.
        """
        return tuple(f"{name}: {line}" for name, err in self.failed for line in leftover_lines(err))

    def error(self) -> CloudGpuError | None:
        """Return one error for all failures, or None. Failed deletions take precedence over unrecorded deletions."""
        if self.failed:
            return self._left_error()
        if not self.unrecorded:
            return None
        names = [name for name, _ in self.unrecorded]
        why = "; ".join(dict.fromkeys(err.message for _, err in self.unrecorded))
        hint = f"free some disk space, then run `{command('cloudgpu', 'down', *names)}` again to record the deletion"
        error_class = next((LedgerError for _, err in self.unrecorded if isinstance(err, LedgerError)), StateError)
        return error_class(why, hint=hint)

    def _left_error(self) -> TeardownError:
        names = [name for name, _ in self.failed]
        count = len(names) + len(self.ended) + len(self.unrecorded)
        message = f"{len(names)} of {count} clusters are not confirmed deleted: {', '.join(names)}"
        again = command("cloudgpu", "down", *names)
        return TeardownError(message, left=self.left, hint=f"continue with `{again}`")


def select_clusters(
    records: RecordStore, names: Sequence[str], *, every: bool, run_id: str, owner: str | None
) -> ClusterSelection:
    """Select clusters of this state home by name, run or owner, or select all of them.

    Raises:
        UsageError: Several of these selectors are combined, or the run does not exist.
    """
    selectors = [bool(names), every, bool(run_id), owner is not None]
    if sum(selectors) > 1:
        message = "cluster names, --all, --mine and --run are mutually exclusive"
        raise UsageError(message, hint="run `cloudgpu down --help`")
    if run_id:
        run = records.run(run_id)
        if run is None:
            raise UsageError(f"run {run_id} does not exist", hint="run `cloudgpu status --all` to list the runs")
        cluster = records.last_known(run.cluster)
        # A cluster that the run only reused may still be in use, so it needs a confirmation.
        return ClusterSelection((run.cluster,), asked=cluster is None or cluster.identity.run_id == run_id)
    if names:
        return ClusterSelection(tuple(dict.fromkeys(names)), asked=True)
    known = records.clusters()
    # A damaged record has no owner. `--mine` includes the cluster, because the record is in the caller's state home.
    names_of_owner = (cluster.name for cluster in known if owner is None or cluster.identity.owner in ("", owner))
    return ClusterSelection(tuple(names_of_owner), asked=False)


def delete_clusters(names: Sequence[str], context_of: ContextOf, region: str, emit: Emit) -> TeardownResults:
    """Delete these clusters concurrently. A `CloudGpuError` for one cluster does not stop the other deletions."""

    def end(name: str) -> DeletionResult | CloudGpuError:
        try:
            return replace(context_of(name), emit=_named(name, emit)).clusters.delete(name, region)
        except CloudGpuError as err:
            emit(Note(f"{name}: {err.message}"))
            return err

    with Workers(min(_AT_ONCE, len(names)), "down") as pool:
        outcomes = list(zip(names, pool.map(end, names), strict=True))
    ended = tuple(outcome for _, outcome in outcomes if isinstance(outcome, DeletionResult))
    failed = [(name, outcome) for name, outcome in outcomes if isinstance(outcome, CloudGpuError)]
    return TeardownResults(
        ended,
        failed=tuple((name, err) for name, err in failed if not _is_deleted(err)),
        unrecorded=tuple((name, err) for name, err in failed if _is_deleted(err)),
    )


def _is_deleted(err: CloudGpuError) -> bool:
    """Return True if only recording the deletion failed. The error then contains the result of `down`."""
    return isinstance(err, LedgerError | StateError) and "instances_ended" in err.partial_result


def _named(name: str, emit: Emit) -> Emit:
    """Prefix notes with the cluster's name, because several clusters report at the same time."""

    def emit_named(event: ProgressEvent) -> None:
        emit(Note(f"{name}: {event.text}") if isinstance(event, Note) and event.node is None else event)

    return emit_named
