"""Extend a cluster's expiry on any backend: resolve the time, check the budget, update the ledger and the record."""

from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

from cloudgpu.backends.base import Context
from cloudgpu.backends.billing.cluster_billing import ClusterBilling
from cloudgpu.backends.billing.costs import worst_case_usd
from cloudgpu.backends.lifecycle.results import ExtensionResult
from cloudgpu.backends.lifecycle.reuse import find_running_cluster, require_all_nodes_running
from cloudgpu.errors import BudgetError, UsageError
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.text import command


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
