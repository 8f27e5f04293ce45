"""Update the state home's records after a cluster has been deleted."""

from dataclasses import replace

from cloudgpu.backends.base import Context
from cloudgpu.backends.billing.lenient_ledger import LenientLedger
from cloudgpu.errors import StateError
from cloudgpu.run.progress import Note
from cloudgpu.state import ssh_config_record
from cloudgpu.state.run_record import CLUSTER_DELETED


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
    for problem in ssh_config_record.remove_entries(context.home, name):
        context.emit(Note(problem))
    try:
        if isinstance(context.ledger, LenientLedger) and context.ledger.failed:
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
