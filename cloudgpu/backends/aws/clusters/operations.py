"""The operations on clusters of AWS and of the rehearsal cloud."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

from cloudgpu.backends.aws.account import AwsAccount, CloudContext
from cloudgpu.backends.aws.clusters.create import Provisioning, reuse_cluster
from cloudgpu.backends.aws.clusters.delete import Teardown
from cloudgpu.backends.aws.clusters.launch_attempt import program_settings_for, record_with_candidate
from cloudgpu.backends.aws.clusters.ledger_rows import record_node_ends, restore_missing_rows
from cloudgpu.backends.aws.clusters.ssh_access import authorize_ssh, detect_caller_cidr
from cloudgpu.backends.aws.engines import stack_of
from cloudgpu.backends.base import ClusterOperations
from cloudgpu.backends.billing.cluster_billing import rows_of
from cloudgpu.backends.lifecycle.existing_cluster import (
    IN_PLACE_OPERATIONS,
    extended_record,
    format_utc,
    hold_lease,
    record_confirmation,
    record_new_expiry,
    require_extendable,
    require_within_budget,
    resolve_expiry,
)
from cloudgpu.backends.lifecycle.launch_request import Requester, new_record
from cloudgpu.backends.lifecycle.results import DeletionResult, ExtensionResult, ProvisionedCluster, ResourceForecast
from cloudgpu.clock import Clock
from cloudgpu.engine.base import PreviewStep
from cloudgpu.errors import CloudError, CloudGpuError, StateError, UsageError
from cloudgpu.node.bootstrap import EXTENDABLE, confirmed_expiry, extend_command
from cloudgpu.paths import Home
from cloudgpu.plan.capacity import TAKEN_BEFORE_END
from cloudgpu.plan.plan import Plan
from cloudgpu.run.progress import Note
from cloudgpu.ssh.base import Host
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.fanout import all_or_raise, run_on_all
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.nodes import mark_booted_nodes, stored_inventory
from cloudgpu.text import command, plural

_TIMEOUT_S = 60.0
_EXPIRES = "cloudgpu:expires-at"
_PLACEHOLDER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA forecast"
"""Placeholder public key: a preview must not create a key pair."""
_PLACEHOLDER_CIDR = "127.0.0.1/32"
"""Placeholder for the caller's address, which a preview does not look up."""
_NO_JOURNAL = ".forecast"
"""Name of a journal that never exists, so that an existing cluster of the same name does not affect the preview."""
_COMPONENT = "cloudgpu:infra:"
_STACK = "pulumi:"


@dataclass(frozen=True)
class CloudClusters(ClusterOperations):
    """Creates, verifies, extends and deletes clusters in one cloud account."""

    context: CloudContext

    def create(
        self,
        plan: Plan,
        name: str,
        requester: Requester,
        *,
        run_id: str = "",
        keep_on_failure: bool = False,
        retry_s: int = 0,
    ) -> ProvisionedCluster:
        """Create a cluster, or verify that the existing one matches the plan, as `reuse` does."""
        provisioning = Provisioning(self.context, requester)
        return provisioning.create(plan, name, run_id=run_id, keep_on_failure=keep_on_failure, retry_s=retry_s)

    def reuse(self, name: str, plan: Plan) -> ProvisionedCluster:
        """Verify a running cluster, and allow the caller's address and the S3 locations of the plan's recipe."""
        return reuse_cluster(self.context, name, plan)

    def delete(self, name: str, default_region: str) -> DeletionResult:
        """Delete a cluster and verify by a tag search that nothing is left."""
        return Teardown(self.context).down(name, default_region)

    def extend(
        self, name: str, *, until: datetime | None = None, by: timedelta | None = None, max_usd: Decimal | None = None
    ) -> ExtensionResult:
        """Extend a cluster's expiry on every node, to a time or by a duration.

        `max_usd` replaces the cluster's budget.
        """
        with hold_lease(self.context, name):
            record = require_extendable(self.context, name, max_usd)
            restore_missing_rows(self.context, record)
            before, requested = resolve_expiry(record, until, by)
            later = self._later(record, before, requested)
            self._refuse_other_changes(later)
            later = record_new_expiry(self.context, later)
            self.context.cloud.engine(later).up(stack_of(self.context.home, later), self.context.emit)
            self._retag(later)
            self._rearm(later)
            return record_confirmation(self.context, later, before)

    def authorize(self, record: ClusterRecord) -> ClusterRecord:
        """Open port 22 of a running cluster to the caller's current address."""
        return authorize_ssh(self.context, record)

    def record_costs(self, record: ClusterRecord) -> None:
        """Restore missing ledger rows, and record the termination times of terminated nodes."""
        if record.placement.instance_ids:
            restore_missing_rows(self.context, record)
            record_node_ends(self.context, rows_of(self.context.ledger, record.name, record.identity.token))

    def _later(self, record: ClusterRecord, before: datetime, until: datetime) -> ClusterRecord:
        """Return the record with the new expiry."""
        first = record.lifecycle.first_expires_at or before
        if until > first + EXTENDABLE:
            latest = format_utc(first + EXTENDABLE)
            message = f"cluster {record.name} can be extended to at most {latest}, not {format_utc(until)}"
            raise UsageError(message, hint="to run longer, create a new cluster")
        self._refuse_beyond_block(record, until)
        caller_config = (
            {"sshCidr": detect_caller_cidr(self.context, record)} if "sshCidr" in record.placement.config else {}
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
        reservation = self.context.cloud.reservation(block, [region]).found
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
        steps = self.context.cloud.engine(later).preview(stack_of(self.context.home, later))
        changed = sorted({step.name for step in steps if step.operation not in IN_PLACE_OPERATIONS})
        if changed:
            message = (
                f"cluster {later.name} was created by another version of cloudgpu: {', '.join(changed)} would change"
            )
            raise StateError(message, hint="extend the cluster with that version, or create a new cluster")

    def _retag(self, later: ClusterRecord) -> None:
        """Update the expiry tags of instances, volumes and network interfaces, which the program does not manage."""
        resources = self.context.cloud.search(later.name, [later.placement.region])
        own = [resource for resource in resources if resource.tags.get("cloudgpu:token") == later.identity.token]
        self.context.cloud.retag(own, {_EXPIRES: later.placement.config["expiresAt"]})

    def _rearm(self, later: ClusterRecord) -> None:
        """Set the new power-off timer on every node."""
        stored = stored_inventory(self.context.home, later)
        nodes = mark_booted_nodes(self.context.records, stored, self.context.clock.now()).nodes
        hosts = self.context.backend.connect(nodes, self.context.emit)
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
        self.context.emit(
            Note(f"{plural(len(nodes), 'node')} will terminate at {format_utc(later.lifecycle.expires_at)}")
        )


def _set_timer(host: Host, until: datetime) -> None:
    done = host.try_run(RemoteCommand(*extend_command(until)), timeout_s=_TIMEOUT_S)
    if not done.ok or confirmed_expiry(done.stdout) != until:
        why = "; ".join(done.tail(2)) or f"exit code {done.exit_code}"
        message = f"node {host.node.index} ({host.node.instance_id}) did not accept the new expiry: {why}"
        raise StateError(message, hint="run the same `cloudgpu extend` command again")


def forecast(
    plan: Plan, cluster: str, *, cloud: AwsAccount, requester: Requester, home: Home, clock: Clock
) -> tuple[ResourceForecast, ...]:
    """Preview the resources of a cluster on the plan's first candidate without changing anything.

    The public key of `requester` is not used.
    """
    if not plan.candidates:
        return ()
    record = record_with_candidate(
        new_record(cloud, plan, cluster, requester, "", clock.now()),
        plan,
        plan.candidates[0],
        program_settings_for(plan.recipe, cloud.program_settings),
        public_key=_PLACEHOLDER_KEY,
        ssh_cidr=_PLACEHOLDER_CIDR,
    )
    journal: Path = home.cluster(cluster).journal(record.placement.region).with_name(_NO_JOURNAL)
    stack = replace(stack_of(home, record), journal=journal)
    return tuple(_made(cloud.engine(record).preview(stack)))


def _made(steps: Iterable[PreviewStep]) -> Iterator[ResourceForecast]:
    """Yield the AWS resources that the program would create, without Pulumi components and the stack itself."""
    for step in steps:
        if step.operation == "create" and not step.type.startswith((_COMPONENT, _STACK)):
            yield ResourceForecast(step.type, step.name)
