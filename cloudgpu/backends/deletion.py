"""The result of deleting a cluster, and the checks around it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from cloudgpu.backends.context import Context
from cloudgpu.backends.lenient_ledger import check_ledger
from cloudgpu.backends.storage_outcome import NOTHING, Settled
from cloudgpu.errors import CloudGpuError, LedgerError, StateError, TeardownError
from cloudgpu.state.cluster_and_run_records import ClusterRecord
from cloudgpu.state.identity import BackendIdentity
from cloudgpu.text import command


@dataclass(frozen=True)
class Ended:
    """The confirmed result of `down`.

    Attributes:
        known: True if this home had a record of the cluster.
        instances: Recorded instances that were terminated.
        strays: Resources that only the tag search found.
        usd: Total cost of the cluster; simulated if `simulated` is True.
    """

    cluster: str
    known: bool
    instances: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    usd: Decimal = Decimal(0)
    simulated: bool = False
    run_id: str = ""
    """The run that a `train` made it for; empty otherwise."""
    storage: Settled = NOTHING
    """What became of its storage."""
    estimated: bool = False
    """Whether the cost is an upper bound, because the cloud gave no time for an end."""
    unsaved: tuple[str, ...] = ()
    """What could not be written to the state home or removed from it."""
    own: bool = False
    """Whether it stood on hosts of one's own, which confirmed it themselves and go on being there."""

    def as_json(self) -> dict[str, Any]:
        """Return the documented `down --json` form. `left` is always empty, because otherwise `down` fails."""
        return {
            "cluster": self.cluster,
            "run_id": self.run_id,
            "known": self.known,
            "instances_ended": list(self.instances),
            "strays_ended": list(self.strays),
            "storage_ended": list(self.storage.ended),
            "storage_kept": [kept_storage.as_json() for kept_storage in self.storage.kept],
            "cost": {"usd": str(self.usd), "simulated": self.simulated, "estimated": self.estimated},
            "simulated": self.simulated,
            "left": [],
        }


def check_identity(record: ClusterRecord, cloud: BackendIdentity) -> None:
    """Refuse to take another account's or endpoint's emptiness for this cluster's end.

    Raises:
        StateError: The cluster was made under another account or endpoint.
    """
    account, endpoint = cloud.account(), cloud.endpoint
    if (record.account, record.endpoint) != (account, endpoint):
        there = f"account {record.account}{' at ' + record.endpoint if record.endpoint else ''}"
        here = f"account {account}{' at ' + endpoint if endpoint else ''}"
        message = f"cluster {record.name} was made in {there}, but the current credentials belong to {here}"
        raise StateError(message, hint="use the credentials and the --on that it was created with")


def check_recorded(context: Context, ended: Ended, what: str) -> None:
    """Refuse to call a teardown done that could not be recorded; its error carries what was deleted.

    Raises:
        LedgerError: The ledger could not be read or written.
        StateError: A record could not be written or removed.
    """
    retry = f"then `{command('cloudgpu', 'down', ended.cluster)}` again, which records it"
    try:
        check_ledger(context, what)
        _check_saved(ended.unsaved, what)
    except (LedgerError, StateError) as err:
        err.hint = f"{err.hint}; {retry}"
        err.partial_result = ended.as_json()
        raise


def _check_saved(unsaved: Sequence[str], what: str) -> None:
    if unsaved:
        message = f"{what}, but the state home could not be updated: {'; '.join(unsaved)}"
        raise StateError(message, hint="free some disk space")


def end_after(end: Callable[[ClusterRecord], Ended], record: ClusterRecord, cause: Exception) -> None:
    """Delete what a failed `up` created. The caller re-raises the original error unless something is left.

    Raises:
        TeardownError: Something is left. The message has both failures.
    """
    try:
        end(record)
    except CloudGpuError as err:
        raise unended(record.name, cause, err) from cause


def unended(name: str, cause: Exception, err: CloudGpuError) -> TeardownError:
    """Combine a failure and the failed cleanup after it into one error with the exit code of the cleanup."""
    left = tuple(getattr(err, "left", ())) or (f"cluster {name}",)
    message = f"{cause}; and the cleanup failed: {err.message}"
    return TeardownError(message, left=left, hint=command("cloudgpu", "down", name))
