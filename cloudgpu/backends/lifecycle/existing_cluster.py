"""Use an existing cluster: hold its lease, decide whether it can run a plan, and extend its expiry."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

from cloudgpu.backends.base import Context
from cloudgpu.backends.billing.cluster_billing import ClusterBilling
from cloudgpu.backends.billing.costs import worst_case_usd
from cloudgpu.backends.lifecycle.deletion import check_identity
from cloudgpu.backends.lifecycle.results import ExtensionResult
from cloudgpu.engine.lease import ClusterLease
from cloudgpu.errors import BudgetError, BusyError, StateError, UsageError
from cloudgpu.launch.inventory import ALIVE_STATES
from cloudgpu.plan.plan import Plan
from cloudgpu.run.progress import Note
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.storage_records import missing_storage
from cloudgpu.text import command

IN_PLACE_OPERATIONS = frozenset({"same", "read", "update"})
"""Resource operations that are safe on a cluster that is in use."""


def find_running_cluster(context: Context, name: str) -> ClusterRecord:
    """Return the record of a running cluster that the current credentials may use."""
    record = context.records.cluster(name)
    if record is None or record.state != "up":
        message = (
            f"there is no running cluster {name}"
            if record is None
            else f"cluster {name} is not running (state: {record.state})"
        )
        raise UsageError(message, hint="run `cloudgpu status` to list the clusters")
    require_usable(context, record)
    return record


def require_usable(context: Context, record: ClusterRecord) -> None:
    """Reject a cluster that belongs to another account or endpoint, is being deleted, or has expired."""
    check_identity(record, context.backend)
    if record.state == "ending":
        raise BusyError(f"cluster {record.name} is being deleted", hint=command("cloudgpu", "down", record.name))
    expiry = record.lifecycle.expires_at
    if expiry <= context.clock.now():
        raise UsageError(
            f"cluster {record.name} expired at {expiry:%Y-%m-%d %H:%M} UTC; its nodes have powered off",
            hint=command("cloudgpu", "down", record.name),
        )


def matches(plan: Plan, record: ClusterRecord) -> bool:
    """Return True if the cluster has the plan's nodes and, if it is running, mounts the plan's storage."""
    if record.state == "up" and missing_storage(plan.recipe, record.placement.storage):
        return False
    return record.placement.nodes == plan.nodes and record.placement.instance_type in {
        candidate.instance_type for candidate in plan.candidates
    }


def require_matching(plan: Plan, record: ClusterRecord) -> None:
    """Reject a cluster whose nodes or storage do not match the plan."""
    missing = missing_storage(plan.recipe, record.placement.storage) if record.state == "up" else []
    if missing:
        message = f"the nodes of cluster {record.name} do not mount storage {', '.join(missing)} as the recipe requires"
        raise UsageError(
            message, hint="choose another name with --name or --cluster, because storage is mounted when nodes boot"
        )
    if not matches(plan, record):
        requested = " or ".join(sorted({candidate.instance_type for candidate in plan.candidates}))
        incomplete = "partially created " if record.state == "making" else ""
        raise UsageError(
            f"{incomplete}cluster {record.name} is {record.placement.nodes} x {record.placement.instance_type}, "
            f"not the {plan.nodes} x {requested} requested",
            hint=f"choose another name with --name, or run `{command('cloudgpu', 'down', record.name)}` first",
        )


def require_all_nodes_running(context: Context, record: ClusterRecord) -> None:
    """Reject a cluster that has lost nodes."""
    states = context.backend.instance_states(record.placement.region, record.placement.instance_ids)
    lost = [f"{node} is {state}" for node, state in states.items() if state not in ALIVE_STATES]
    if lost or not states:
        message = f"cluster {record.name} is incomplete: {', '.join(lost) or 'no nodes'}"
        raise StateError(message, hint=command("cloudgpu", "down", record.name))


def cluster_lease(context: Context, name: str) -> ClusterLease:
    """Return the lease on a cluster."""
    return ClusterLease(context.home.cluster(name).lease, context.clock, context.owner)


@contextmanager
def hold_lease(context: Context, name: str) -> Iterator[None]:
    """Hold the lease on a cluster while the `with` block runs."""
    with cluster_lease(context, name).hold(tidy=True):
        yield


@contextmanager
def hold_lease_to_delete(context: Context, name: str) -> Iterator[None]:
    """Hold the lease on a cluster, or continue without the lease if the state home cannot be written."""
    with cluster_lease(context, name).hold(tidy=True, required=False) as lease:
        if lease.problem:
            context.emit(Note(f"{lease.problem}; deleting cluster {name} anyway"))
        yield


def require_extendable(context: Context, name: str, max_usd: Decimal | None) -> ClusterRecord:
    """Return the cluster's record if all of its nodes are running.

    `max_usd`, if given, replaces the recorded budget.
    """
    record = find_running_cluster(context, name)
    require_all_nodes_running(context, record)
    if max_usd is None:
        return record
    return replace(record, lifecycle=replace(record.lifecycle, max_usd=format(max_usd, "f")))


def resolve_expiry(record: ClusterRecord, until: datetime | None, by: timedelta | None) -> tuple[datetime, datetime]:
    """Return the current expiry and the requested expiry, which is `until` or the current expiry plus `by`."""
    before = record.lifecycle.confirmed_expires_at or record.lifecycle.expires_at
    requested = (before + by if until is None and by is not None else until) or before
    requested = requested.replace(microsecond=0)
    if requested <= before:
        message = f"cluster {record.name} already expires at {format_utc(before)}; {format_utc(requested)} is not later"
        raise UsageError(message, hint=f"run `{command('cloudgpu', 'down', record.name)}` to delete the cluster now")
    return before, requested


def extended_record(record: ClusterRecord, before: datetime, requested: datetime) -> ClusterRecord:
    """Return the record with the requested expiry, which no node has confirmed yet."""
    first = record.lifecycle.first_expires_at or before
    lifecycle = replace(record.lifecycle, expires_at=requested, confirmed_expires_at=before, first_expires_at=first)
    return replace(record, lifecycle=lifecycle)


def require_within_budget(later: ClusterRecord) -> None:
    """Reject a new expiry if the cluster could exceed its budget before then."""
    worst = worst_case_usd(later)
    if later.lifecycle.max_usd and worst > Decimal(later.lifecycle.max_usd):
        until = f"until {format_utc(later.lifecycle.expires_at)}, the cluster costs up to {worst} USD"
        message = f"{until}, above budget.max_usd {later.lifecycle.max_usd} USD"
        raise BudgetError(
            message, hint=f"extend the expiry by less, or raise the budget: {command('--max-usd', str(worst))}"
        )


def record_new_expiry(context: Context, later: ClusterRecord) -> ClusterRecord:
    """Write the new expiry to the ledger rows and then to the record."""
    now = context.clock.now()
    for row in ClusterBilling(context).rows(later):
        if row.state == "open":
            context.ledger.extend(row.spending.entry_id, later.lifecycle.expires_at, now)
    return context.records.save_cluster(later, now)


def record_confirmation(context: Context, later: ClusterRecord, before: datetime) -> ExtensionResult:
    """Record that every node has confirmed the new expiry."""
    done = replace(later, lifecycle=replace(later.lifecycle, confirmed_expires_at=None))
    return ExtensionResult(context.records.save_cluster(done, context.clock.now()), before, worst_case_usd(done))


def format_utc(at: datetime) -> str:
    """Format a time as `2026-11-21 13:00 UTC`."""
    return f"{at:%Y-%m-%d %H:%M} UTC"
