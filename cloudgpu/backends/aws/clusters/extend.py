"""`extend`: extend a cluster's expiry so that a crash at any step leaves a power-off timer on every node.

The order of the steps ensures that the ledger always covers the time until the nodes power off:

1. Write the new expiry, up to which the cluster may incur costs, to the ledger row and then to the record.
2. Apply the program, which moves the expiry schedule and tags the program's resources with the new expiry.
3. Update the expiry tags of instances, volumes and network interfaces, which `sweep` reads.
4. On each node, write the new time to disk, start a second timer, and only then remove the first timer.
5. Record that every node has confirmed.

If the command is interrupted before step 4, all nodes power off at their old expiry; during step 4, only some of them
do. To continue, run the command again with the same time.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

from cloudgpu.backends.aws.account import CloudContext
from cloudgpu.backends.aws.clusters.ledger_rows import restore_missing_rows
from cloudgpu.backends.aws.clusters.ssh_access import detect_caller_cidr
from cloudgpu.backends.aws.engines import stack_of
from cloudgpu.backends.base import Connect
from cloudgpu.backends.lifecycle.cluster_lease import hold_lease
from cloudgpu.backends.lifecycle.expiry_extension import (
    extended_record,
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
from cloudgpu.node.bootstrap import EXTENDABLE, confirmed_expiry, extend_command
from cloudgpu.plan.capacity import TAKEN_BEFORE_END
from cloudgpu.run.progress import Note
from cloudgpu.ssh.base import Host
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.fanout import all_or_raise, run_on_all
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.nodes import mark_booted_nodes, stored_inventory
from cloudgpu.text import command, plural

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
        """Return the record with the new expiry."""
        first = record.lifecycle.first_expires_at or before
        if until > first + EXTENDABLE:
            latest = format_utc(first + EXTENDABLE)
            message = f"cluster {record.name} can be extended to at most {latest}, not {format_utc(until)}"
            raise UsageError(message, hint="to run longer, create a new cluster")
        self._refuse_beyond_block(record, until)
        caller_config = (
            {"sshCidr": detect_caller_cidr(self._context, record)} if "sshCidr" in record.placement.config else {}
        )
        config = {**record.placement.config, **caller_config, "expiresAt": until.strftime("%Y-%m-%dT%H:%M:%SZ")}
        later = extended_record(record, before, until)
        later = replace(later, placement=replace(later.placement, config=config))
        require_within_budget(later)
        return later

    def _refuse_beyond_block(self, record: ClusterRecord, until: datetime) -> None:
        """Reject an expiry later than 30 minutes before a Capacity Block ends, when AWS starts reclaiming its nodes."""
        if record.placement.market != "capacity-block":
            return
        block, region = record.placement.config["reservation"], record.placement.region
        reservation = self._context.cloud.reservation(block, [region]).found
        if reservation is None or reservation.ends_at is None:
            message = f"the end of Capacity Block {block} is unknown: AWS does not list the block in {region}"
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
        """Reject the extension if the program would create, replace or delete resources of the running cluster."""
        steps = self._context.cloud.engine(later).preview(stack_of(self._context.home, later))
        changed = sorted({step.name for step in steps if step.operation not in IN_PLACE_OPERATIONS})
        if changed:
            message = (
                f"cluster {later.name} was created by another version of cloudgpu: {', '.join(changed)} would change"
            )
            raise StateError(message, hint="extend the cluster with that version, or create a new cluster")

    def _retag(self, later: ClusterRecord) -> None:
        """Update the expiry tags of instances, volumes and network interfaces, which the program does not manage."""
        resources = self._context.cloud.search(later.name, [later.placement.region])
        own = [resource for resource in resources if resource.tags.get("cloudgpu:token") == later.identity.token]
        self._context.cloud.retag(own, {_EXPIRES: later.placement.config["expiresAt"]})

    def _rearm(self, later: ClusterRecord) -> None:
        """Set the new power-off timer on every node."""
        stored = stored_inventory(self._context.home, later)
        nodes = mark_booted_nodes(self._context.records, stored, self._context.clock.now()).nodes
        hosts = self._connect(nodes, self._context.emit)
        try:
            all_or_raise(run_on_all(hosts, lambda host: _set_timer(host, later.lifecycle.expires_at)))
        except CloudGpuError as err:
            before = later.lifecycle.confirmed_expires_at or later.lifecycle.expires_at
            again = command("cloudgpu", "extend", later.name, "--until", later.placement.config["expiresAt"])
            err.hint = f"run `{again}` again before {format_utc(before)}"
            raise
        finally:
            for host in hosts:
                host.close()
        self._context.emit(
            Note(f"{plural(len(nodes), 'node')} will terminate at {format_utc(later.lifecycle.expires_at)}")
        )


def _set_timer(host: Host, until: datetime) -> None:
    done = host.try_run(RemoteCommand(*extend_command(until)), timeout_s=_TIMEOUT_S)
    if not done.ok or confirmed_expiry(done.stdout) != until:
        why = "; ".join(done.tail(2)) or f"exit code {done.exit_code}"
        message = f"node {host.node.index} ({host.node.instance_id}) did not accept the new expiry: {why}"
        raise StateError(message, hint="run the same `cloudgpu extend` command again")
