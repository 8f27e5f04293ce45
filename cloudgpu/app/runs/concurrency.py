"""Handle other processes that use or delete the cluster of a run, or upload its work directory.

The agents know every run on a node, no matter which machine or state home started it. `start` repeats the check on
the nodes under a lock, so that only one of two simultaneous runs starts.
"""

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, Literal

from cloudgpu import files
from cloudgpu.backends.base import Context
from cloudgpu.backends.lifecycle.credential_wait import CredentialWait
from cloudgpu.backends.lifecycle.results import DeletionResult
from cloudgpu.decoding import MALFORMED
from cloudgpu.errors import BusyError, RemoteCommandError, StateError
from cloudgpu.paths import unwritable_error
from cloudgpu.run.agent import Agent, run_on_agents
from cloudgpu.run.progress import Note
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.run_records import CLUSTER_DELETED, RunRecord
from cloudgpu.text import command, printable

Sharing = Literal["refuse", "wait", "share"]
"""What a run does if other runs are in progress on its nodes."""
_BUSY_POLL_S: Final = 5.0
_REPORT_S: Final = 60.0
_LONGEST_ID: Final = 200
_POLL_S = 1.0
_TIMEOUT_S = 1200.0
"""Longest wait for another process. AWS takes minutes to terminate the largest instances and a NAT gateway."""


class BusyNodes:
    """The check for other runs on the nodes of one cluster."""

    def __init__(self, context: Context, sharing: Sharing, cluster: str, run_id: str) -> None:
        self._context = context
        self._sharing = sharing
        self._cluster = cluster
        self._run_id = run_id

    @property
    def alone(self) -> bool:
        """Whether the run may start only while no other run is in progress."""
        return self._sharing != "share"

    @property
    def waits(self) -> bool:
        """Whether the run waits until no other run is in progress."""
        return self._sharing == "wait"

    def require_idle(self, agents: Sequence[Agent]) -> None:
        """Return when no other run is in progress on the nodes, or immediately if the run shares them.

        Raises:
            BusyError: Another run is in progress, and the run does not wait.
            ConnectError: A node is unreachable, for example because the cluster expired during the wait.
            RemoteCommandError: An agent reported an error.
        """
        if not self.alone:
            return
        clock = self._context.clock
        began, reported = clock.monotonic(), -_REPORT_S
        while runs := self._unfinished(agents):
            if not self.waits:
                raise self._refusal(runs)
            waited_s = clock.monotonic() - began
            if waited_s - reported >= _REPORT_S:
                reported = waited_s
                since = f", for {waited_s / 60:.0f} min so far" if waited_s >= _REPORT_S else ""
                self._context.emit(Note(f"waiting for run {', '.join(runs)} on cluster {self._cluster}{since}"))
            clock.sleep(_BUSY_POLL_S)

    def _unfinished(self, agents: Sequence[Agent]) -> list[str]:
        replies = run_on_agents(
            agents, lambda agent: agent.ask("busy", {"run_dir": f"{agent.home}/.cloudgpu/runs/{self._run_id}"})
        )
        try:
            return sorted({_run_id(run) for reply in replies.values() for run in reply["runs"]})
        except MALFORMED as err:
            message = f"a node of cluster {self._cluster} sent a malformed list of runs"
            raise RemoteCommandError(message, hint="run the command again") from err

    def _refusal(self, runs: Sequence[str]) -> BusyError:
        names = f"run {runs[0]} is" if len(runs) == 1 else f"runs {', '.join(runs)} are"
        message = f"cluster {self._cluster} is busy: {names} in progress on it"
        hint = (
            "add --wait to start afterwards, or --share to use the same GPUs at the same time; "
            f"to stop it: {command('cloudgpu', 'cancel', runs[0])}"
        )
        return BusyError(message, hint=hint)


def _run_id(run: object) -> str:
    """Return a run ID that a node reported, which is untrusted."""
    if not isinstance(run, str):
        raise TypeError("a run ID is not a string")
    return printable(run[:_LONGEST_ID])


def cancelled_by_deletion(record: RunRecord, cluster: ClusterRecord | None) -> RunRecord:
    """Return the run, marked as cancelled if it failed only because its cluster was deleted.

    If a rank reported a failure, the run remains `failed`, because the rank failed before the deletion.
    """
    ending = cluster is None or cluster.state == "ending"
    has_no_cause = record.state == "lost" or (record.state == "failed" and record.failed_rank is None)
    return (
        replace(record, state="cancelled", reason=CLUSTER_DELETED)
        if ending and has_no_cause and record.ranks
        else record
    )


def delete_or_wait(context: Context, cluster: ClusterRecord) -> DeletionResult | None:
    """Delete a cluster, or wait for another process that is deleting it. If that process dies, delete the cluster here.

    Returns:
        The result, or None if another process has deleted the cluster.

    Raises:
        BusyError: Another process is using the cluster without deleting it, or has not deleted it within 20 minutes.
        CloudGpuError: The cluster cannot be deleted; see `ClusterOperations.delete`.
    """
    deadline = context.clock.monotonic() + _TIMEOUT_S
    reported = False
    while (present := _present(context, cluster)) is not None:
        try:
            return delete_with_new_credentials(context, cluster)
        except BusyError as err:
            if present.state != "ending" or context.clock.monotonic() > deadline:
                raise
            if not reported:
                context.emit(Note(f"{err.message}; waiting until that process has deleted the cluster"))
            reported = True
        context.clock.sleep(_POLL_S)
    return None


def delete_with_new_credentials(context: Context, cluster: ClusterRecord) -> DeletionResult:
    """Delete a cluster. If the credentials have expired, wait until the user has renewed them.

    Raises:
        CloudGpuError: The cluster cannot be deleted; see `ClusterOperations.delete`.
    """
    wait = CredentialWait(context.clock, context.emit, cluster.lifecycle.expires_at)
    return wait.retry(lambda: context.clusters.delete(cluster.name, cluster.placement.region))


def _present(context: Context, cluster: ClusterRecord) -> ClusterRecord | None:
    """Return the stored record, or None if the cluster is deleted.

    If the stored record is unreadable, return the given record, because `down` can still find the cluster by its tag.
    """
    try:
        return context.records.cluster(cluster.name)
    except StateError:
        return cluster


@contextmanager
def only_sender(context: Context, cluster: str, recipe: str) -> Iterator[None]:
    """Allow only one run of a recipe at a time to upload the work directory to a cluster.

    Only this state home can reach the cluster's nodes, so a lock file here is enough. The kernel releases the lock even
    if the process is killed.

    Raises:
        StateError: The lock file cannot be written.
    """
    path = context.home.cluster(cluster).root / f"sending-{recipe}"
    try:
        files.make_private_directory(path.parent)
        held = files.open_for_appending(path)
    except OSError as err:
        raise unwritable_error(path, err) from err
    with held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            context.emit(Note(f"waiting for another run that is uploading the work directory of {recipe}"))
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
