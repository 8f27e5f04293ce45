"""Delete a cluster on self-managed hosts: stop its processes, remove its files, and release the GPUs."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cloudgpu.backends.billing.cluster_billing import ClusterBilling
from cloudgpu.backends.hosts import billing
from cloudgpu.backends.hosts.backend import HostsContext
from cloudgpu.backends.hosts.nodes import LeaveResponse, cluster_directory, cluster_member, host_of
from cloudgpu.backends.lifecycle.deletion import (
    cancel_unfinished_runs,
    check_identity,
    check_recorded,
    remove_local_record,
)
from cloudgpu.backends.lifecycle.existing_cluster import hold_lease_to_delete
from cloudgpu.backends.lifecycle.results import DeletionResult
from cloudgpu.decoding import decode_as, describe_error
from cloudgpu.errors import CloudGpuError, StateError, TeardownError
from cloudgpu.launch.inventory import Node
from cloudgpu.run.agent import ask_once, find_login_home
from cloudgpu.run.progress import Note
from cloudgpu.ssh.base import Host
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.identifiers import require_cluster_name
from cloudgpu.state.nodes import stored_inventory
from cloudgpu.text import command


@dataclass(frozen=True)
class _ReleaseOutcome:
    """The names of the released hosts, and one line with the reason for each host that was not released."""

    released: tuple[str, ...]
    left: tuple[str, ...]


class HostTeardown:
    """Deletes clusters on the hosts of one inventory, and updates the records of one state home."""

    def __init__(self, context: HostsContext) -> None:
        self._context = context
        self._billing = ClusterBilling(context)

    def down(self, name: str, default_region: str) -> DeletionResult:
        """Delete a cluster. Succeed if there is nothing to delete."""
        del default_region
        with hold_lease_to_delete(self._context, require_cluster_name(name)):
            record = self._recorded(name)
            ended = self._delete_unrecorded(name) if record is None else self.end(record, runs_too=True)
        check_recorded(self._context, ended, f"cluster {name} is deleted, confirmed by its hosts")
        return ended

    def end(self, record: ClusterRecord, *, runs_too: bool = False) -> DeletionResult:
        """Delete a recorded cluster.

        The caller must hold the cluster's lease. `runs_too` also cancels unfinished runs.
        """
        check_identity(record, self._context.backend)
        with suppress(StateError):  # a full disk must not prevent the release of the hosts
            record = self._context.records.save_cluster(record.in_state("ending"), self._context.clock.now())
        keep = record.placement.config.get("keep_cache", "").split()
        nodes = self._nodes(record)

        def leave(host: Host) -> dict[str, Any]:
            home = cluster_directory(host.node, find_login_home(host))
            request = {"token": record.identity.token, "home": home, "keep_cache": host.node.zone in keep}
            return ask_once(host, "leave", request, LeaveResponse)

        outcome = self._request_release(nodes, leave)
        billing.restore_rows(self._context, record, nodes)
        billing.close_rows(self._context, record, outcome.released)
        if outcome.left:
            message = f"cluster {record.name} is not fully deleted: {'; '.join(outcome.left)}"
            until = f"the cluster's leases expire at {record.lifecycle.expires_at:%Y-%m-%d %H:%M} UTC"
            hint = f"run `{command('cloudgpu', 'down', record.name)}` again when the hosts are reachable; {until}"
            raise TeardownError(message, left=outcome.left, hint=hint)
        usd = self._billing.usd(self._billing.rows(record), self._context.clock.now())
        unsaved = cancel_unfinished_runs(self._context, record.name) if runs_too else ()
        return DeletionResult(
            record.name,
            known=True,
            instances=outcome.released,
            usd=usd,
            run_id=record.identity.run_id,
            own=True,
            unsaved=(*unsaved, *remove_local_record(self._context, record.name)),
        )

    def forget(self, record: ClusterRecord) -> None:
        """Close the ledger rows and remove the record of a cluster that left nothing on any host."""
        billing.close_rows(self._context, record, [node.zone for node in self._nodes(record)])
        remove_local_record(self._context, record.name)

    def _recorded(self, name: str) -> ClusterRecord | None:
        try:
            return self._context.records.cluster(name)
        except StateError as err:
            self._context.emit(Note(f"{err.message}; querying the hosts in the inventory instead"))
            return None

    def _nodes(self, record: ClusterRecord) -> tuple[Node, ...]:
        """Return the nodes stored with the cluster or, if none were stored, those in the current inventory."""
        if self._context.home.cluster(record.name).inventory.exists():
            return stored_inventory(self._context.home, record).nodes
        known = self._context.hosts.file().by_name
        names = [host_of(instance_id) for instance_id in record.placement.instance_ids]
        unknown = [f"{name} could not be queried: it is not in the inventory" for name in names if name not in known]
        if unknown:
            message = f"cannot confirm that cluster {record.name} is deleted: {'; '.join(unknown)}"
            hint = f"run `{command('cloudgpu', 'down', record.name)}` with an inventory that contains these hosts"
            raise TeardownError(message, left=unknown, hint=hint)
        nodes = self._context.hosts.nodes([known[name] for name in names])
        instance_type, gpus = record.placement.instance_type, record.placement.gpus_per_node
        return tuple(cluster_member(node, record.name, record.identity.token, instance_type, gpus) for node in nodes)

    def _delete_unrecorded(self, name: str) -> DeletionResult:
        """Delete the caller's clusters with this name from every host in the inventory."""
        request = {"cluster": name, "owner": self._context.owner}
        answers: dict[str, Mapping[str, Any]] = {}

        def leave(host: Host) -> dict[str, Any]:
            answers[host.node.zone] = answer = ask_once(host, "leave", request, LeaveResponse)
            return answer

        outcome = self._request_release(self._context.hosts.nodes(self._context.hosts.file().hosts), leave)
        if outcome.left:
            message = f"cannot confirm that cluster {name} is deleted: {'; '.join(outcome.left)}"
            raise TeardownError(
                message,
                left=outcome.left,
                hint=f"run `{command('cloudgpu', 'down', name)}` again when the hosts are reachable",
            )
        orphans = tuple(host for host in outcome.released if answers[host]["clusters"])
        usd = self._billing.settle(self._billing.rows_without_record(name), running=bool(orphans))
        unsaved = (*cancel_unfinished_runs(self._context, name), *remove_local_record(self._context, name))
        return DeletionResult(
            name,
            known=False,
            orphans=orphans,
            usd=usd,
            own=True,
            unsaved=unsaved,
            target=self._context.backend.target,
            other_targets=self._billing.other_targets(name),
        )

    def _request_release(self, nodes: Sequence[Node], leave: Callable[[Host], dict[str, Any]]) -> _ReleaseOutcome:
        """Send the release request to all hosts in parallel. Treat an unreachable host as not released."""
        released, left = [], []
        responses = self._context.hosts.query_nodes(nodes, leave)
        for node in nodes:
            response = responses[node.index]
            if isinstance(response, CloudGpuError):
                left.append(f"{node.zone} could not be queried: {response.message}")
                continue
            try:
                remaining = decode_as(LeaveResponse, response).left
            except ValueError as err:
                left.append(f"{node.zone} sent a malformed response: {describe_error(err)}")
                continue
            if remaining:
                left.append(f"{node.zone} still has {', '.join(remaining)}")
            else:
                released.append(node.zone)
        return _ReleaseOutcome(tuple(released), tuple(left))
