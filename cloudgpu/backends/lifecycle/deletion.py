"""Checks before and after the deletion of a cluster, the update of its records, and the cleanup after a failed `up`."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from cloudgpu.backends.base import Context
from cloudgpu.backends.billing.cost_ledger import check_ledger, has_failed
from cloudgpu.backends.lifecycle.results import DeletionResult
from cloudgpu.errors import CloudGpuError, LedgerError, StateError, TeardownError
from cloudgpu.run.progress import Note
from cloudgpu.state import user_ssh_config
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.identifiers import BackendIdentity
from cloudgpu.state.run_records import CLUSTER_DELETED
from cloudgpu.text import command


def cancel_unfinished_runs(context: Context, name: str) -> tuple[str, ...]:
    """Mark the unfinished runs of a deleted cluster as `cancelled`. Runs that already have a result keep it.

    Returns:
        One line for each update that failed. No error is raised, because a full disk must not block the deletion.
    """
    now = context.clock.now()
    unsaved = []
    for run in context.records.runs():
        if run.cluster == name and run.ended_at is None:
            ended = run if run.judged else replace(run, state="cancelled", reason=CLUSTER_DELETED)
            context.ledger.run_ended(run.run_id, ended.state, now)
            try:
                context.records.save_run(replace(ended, ended_at=now))
            except StateError as err:
                unsaved.append(f"the final state of run {run.run_id}: {err.message}")
    return tuple(unsaved)


def remove_local_record(context: Context, name: str) -> tuple[str, ...]:
    """Remove a cluster's OpenSSH configuration and record from this state home.

    If the ledger has failed, the record is kept, so that the next `down` can record the cost.

    Returns:
        One line for each removal that failed.
    """
    for problem in user_ssh_config.remove_entries(context.home, name):
        context.emit(Note(problem))
    try:
        if has_failed(context.ledger):
            _keep_record(context, name)
        else:
            context.records.forget_cluster(name)
    except StateError as err:
        return (f"the record of cluster {name}: {err.message}",)
    return ()


def _keep_record(context: Context, name: str) -> None:
    """Keep the record in the state `ending`, and free disk space by removing files that `down` no longer needs."""
    context.records.remove_cluster_files(name)
    record = context.records.cluster(name)
    if record is not None and record.state != "ending":
        context.records.save_cluster(record.in_state("ending"), context.clock.now())


def check_identity(record: ClusterRecord, cloud: BackendIdentity) -> None:
    """Reject a cluster of another account or endpoint, because a search here would not find its resources."""
    account, endpoint = cloud.account(), cloud.endpoint
    if (record.identity.account, record.identity.endpoint) != (account, endpoint):
        there = (
            f"account {record.identity.account}{' at ' + record.identity.endpoint if record.identity.endpoint else ''}"
        )
        here = f"account {account}{' at ' + endpoint if endpoint else ''}"
        message = f"cluster {record.name} was created in {there}, but the current credentials belong to {here}"
        raise StateError(message, hint="use the credentials and the `--on` target that created the cluster")


def check_recorded(context: Context, ended: DeletionResult, what: str) -> None:
    """Raise an error if a completed deletion could not be recorded. The error contains the result of the deletion."""
    retry = f"run `{command('cloudgpu', 'down', ended.cluster)}` again to record the deletion"
    try:
        check_ledger(context.ledger, what)
        _check_saved(ended.unsaved, what)
    except (LedgerError, StateError) as err:
        err.hint = f"{err.hint}; then {retry}" if err.hint else retry
        err.partial_result = ended.as_json()
        raise


def _check_saved(unsaved: Sequence[str], what: str) -> None:
    if unsaved:
        message = f"{what}, but the state home could not be updated: {'; '.join(unsaved)}"
        raise StateError(message, hint="free some disk space")


def delete_after_failure(
    end: Callable[[ClusterRecord], DeletionResult], record: ClusterRecord, cause: Exception
) -> None:
    """Delete the resources that a failed `up` created. If this function returns, the caller re-raises `cause`."""
    try:
        end(record)
    except CloudGpuError as err:
        raise failed_cleanup_error(record.name, cause, err) from cause


def failed_cleanup_error(name: str, cause: Exception, err: CloudGpuError) -> TeardownError:
    """Combine a failure and the failure of the subsequent cleanup into one `TeardownError`."""
    left = tuple(getattr(err, "left", ())) or (f"cluster {name}",)
    message = f"{cause}; and the cleanup failed: {err.message}"
    return TeardownError(message, left=left, hint=command("cloudgpu", "down", name))
