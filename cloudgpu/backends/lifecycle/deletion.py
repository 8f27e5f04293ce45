"""Checks before and after the deletion of a cluster, and the cleanup after a failed `up`."""

from collections.abc import Callable, Sequence

from cloudgpu.backends.base import Context
from cloudgpu.backends.billing.lenient_ledger import check_ledger
from cloudgpu.backends.lifecycle.results import DeletionResult
from cloudgpu.errors import CloudGpuError, LedgerError, StateError, TeardownError
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.identity import BackendIdentity
from cloudgpu.text import command


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
        check_ledger(context, what)
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
