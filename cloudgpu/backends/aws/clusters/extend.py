"""`extend`: extend a cluster's expiry so that a crash at any step leaves a power-off timer on every node.

The order of the steps ensures that the ledger always covers the time until the nodes power off:

1. Write the new expiry, up to which the cluster may incur costs, to the ledger row and then to the record.
2. Apply the program, which moves the expiry schedule and tags the program's resources with the new expiry.
3. Update the tags of the instances, volumes and interfaces, which `sweep` checks.
4. On each node, write the new time to disk, start a second timer, and only then remove the first timer.
5. Record that every node has confirmed.

If the command is interrupted before step 4, all nodes power off at their old expiry; during step 4, only some of them
do. To continue, run the command again with the same time.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

from cloudgpu.backends.aws.clusters.delete import stack_of
from cloudgpu.backends.aws.clusters.row_restoration import restore_missing_rows
from cloudgpu.backends.aws.clusters.ssh_access import detect_caller_cidr
from cloudgpu.backends.aws.context import CloudContext
from cloudgpu.backends.base import Connect
from cloudgpu.backends.lifecycle.cluster_lease import hold_lease
from cloudgpu.backends.lifecycle.expiry_extension import (
    format_utc,
    record_confirmation,
    record_new_expiry,
    require_extendable,
    require_within_budget,
    resolve_expiry,
)
from cloudgpu.backends.lifecycle.results import ExtensionResult
from cloudgpu.backends.lifecycle.reuse import IN_PLACE_OPERATIONS
from cloudgpu.errors import CloudError, CloudGpuError, StateError, UsageError
from cloudgpu.node.expiry import EXTENDABLE, confirmed_expiry, extend_command
from cloudgpu.plan.reservations import TAKEN_BEFORE_END
from cloudgpu.run.progress import Note
from cloudgpu.ssh.base import Host
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.fanout import all_or_raise, run_on_all
from cloudgpu.state.cluster_and_run_records import ClusterRecord
from cloudgpu.state.inventories import mark_booted_nodes, stored_inventory
from cloudgpu.text import command

_TIMEOUT_S = 60.0
_EXPIRES = "cloudgpu:expires-at"


class ClusterExtender:
    """Extends the expiry of clusters in one cloud and updates their records in one state home."""

    def __init__(self, context: CloudContext, connect: Connect) -> None:
        self._context = context
        self._connect = connect

    def extend(
        self, name: str, *, until: datetime | None = None, by: timedelta | None = None, max_usd: Decimal | None = None
    ) -> ExtensionResult:
        """Extend a cluster's expiry to a time, or by a duration.

        `max_usd` replaces the recipe's budget for this cluster.

        Raises:
            UsageError: The cluster is not up, the time is invalid, or a Capacity Block ends earlier.
            BudgetError: The worst case would exceed the budget.
            StateError: Nodes are lost, or a newer program would change more than the expiry.
            ConnectError: A node is unreachable; the reachable nodes have the new timer.
            BusyError: Another process is working on this cluster.
        """
        with hold_lease(self._context, name):
            record = require_extendable(self._context, name, max_usd)
            restore_missing_rows(self._context, record)
            before, requested = resolve_expiry(record, until, by)
            later = self._later(record, before, requested)
            self._refuse_other_changes(later)
            later = record_new_expiry(self._context, later)
            self._context.cloud.engine(later).up(stack_of(self._context.home, later), self._context.emit)
            self._retag(later)
            self._rearm(later)
            return record_confirmation(self._context, later, before)

    def _later(self, record: ClusterRecord, before: datetime, until: datetime) -> ClusterRecord:
        """Return the record with the new expiry.

        Raises:
            UsageError: The time is too late.
            BudgetError: The cost would exceed the budget.
        """
        first = record.first_expires_at or before
        if until > first + EXTENDABLE:
            latest = format_utc(first + EXTENDABLE)
            message = f"cluster {record.name} can be extended to {latest} at most, not {format_utc(until)}"
            raise UsageError(message, hint="create a new cluster for longer work")
        self._refuse_beyond_block(record, until)
        caller_config = {"sshCidr": detect_caller_cidr(self._context, record)} if "sshCidr" in record.config else {}
        config = {**record.config, **caller_config, "expiresAt": until.strftime("%Y-%m-%dT%H:%M:%SZ")}
        later = replace(record, expires_at=until, confirmed_expires_at=before, first_expires_at=first, config=config)
        require_within_budget(later)
        return later

    def _refuse_beyond_block(self, record: ClusterRecord, until: datetime) -> None:
        """Reject an expiry later than 30 minutes before a Capacity Block ends, when AWS starts reclaiming its nodes.

        Raises:
            UsageError: The new expiry is too late.
            CloudError: The block cannot be looked up.
        """
        if record.market != "capacity-block":
            return
        block = record.config["reservation"]
        reservation = self._context.cloud.reservation(block, [record.region]).found
        if reservation is None or reservation.ends_at is None:
            message = f"the end of Capacity Block {block} is unknown: AWS does not list the block in {record.region}"
            raise CloudError(message, code="InvalidCapacityReservationId.NotFound", hint="try again later")
        last = reservation.ends_at - TAKEN_BEFORE_END
        if until > last:
            ends = f"Capacity Block {block} ends at {format_utc(reservation.ends_at)}"
            message = (
                f"{ends}, and AWS reclaims its nodes from {format_utc(last)}, so they cannot run until "
                f"{format_utc(until)}"
            )
            raise UsageError(
                message, hint=command("cloudgpu", "extend", record.name, "--until", f"{last:%Y-%m-%dT%H:%M:%SZ}")
            )

    def _refuse_other_changes(self, later: ClusterRecord) -> None:
        """Reject an update that changes more than the expiry: a newer program must not alter a cluster in use."""
        steps = self._context.cloud.engine(later).preview(stack_of(self._context.home, later))
        changed = sorted({step.name for step in steps if step.operation not in IN_PLACE_OPERATIONS})
        if changed:
            message = (
                f"cluster {later.name} was created by another version of cloudgpu: {', '.join(changed)} would change"
            )
            raise StateError(message, hint="extend it with that version, or create a new cluster")

    def _retag(self, later: ClusterRecord) -> None:
        """Update the tags of the resources launched with the nodes, which the program does not manage."""
        resources = self._context.cloud.search(later.name, [later.region])
        own = [resource for resource in resources if resource.tags.get("cloudgpu:token") == later.token]
        self._context.cloud.retag(own, {_EXPIRES: later.config["expiresAt"]})

    def _rearm(self, later: ClusterRecord) -> None:
        """Set the new power-off timer on every node.

        Raises:
            ConnectError: A node is unreachable.
            StateError: A node confirms a different time.
        """
        stored = stored_inventory(self._context.home, later)
        nodes = mark_booted_nodes(self._context.records, stored, self._context.clock.now()).nodes
        hosts = self._connect(nodes, self._context.emit)
        try:
            all_or_raise(run_on_all(hosts, lambda host: _set_timer(host, later.expires_at)))
        except CloudGpuError as err:
            before = later.confirmed_expires_at or later.expires_at
            again = command("cloudgpu", "extend", later.name, "--until", later.config["expiresAt"])
            err.hint = f"run `{again}` again before {format_utc(before)}"
            raise
        finally:
            for host in hosts:
                host.close()
        self._context.emit(Note(f"{len(nodes)} nodes now terminate themselves at {format_utc(later.expires_at)}"))


def _set_timer(host: Host, until: datetime) -> None:
    done = host.try_run(RemoteCommand(*extend_command(until)), timeout_s=_TIMEOUT_S)
    if not done.ok or confirmed_expiry(done.stdout) != until:
        why = "; ".join(done.tail(2)) or f"exit code {done.exit_code}"
        message = f"node {host.node.index} ({host.node.instance_id}) did not accept the new expiry: {why}"
        raise StateError(message, hint="run the same `cloudgpu extend` again")
