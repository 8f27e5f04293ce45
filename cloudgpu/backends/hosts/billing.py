"""Ledger rows of a cluster on self-managed hosts: one row per host, because each host is released separately."""

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal

from cloudgpu.backends.billing.cluster_billing import ClusterBilling, missing_nodes
from cloudgpu.backends.billing.cost_ledger import has_failed, reopen_row
from cloudgpu.backends.hosts.backend import HostsContext
from cloudgpu.launch.inventory import Node
from cloudgpu.ledger.entry import Spending, Surcharge
from cloudgpu.plan.host_sets import HostSet
from cloudgpu.run.progress import Note
from cloudgpu.state.cluster_record import ClusterRecord


def open_rows(context: HostsContext, record: ClusterRecord, chosen: HostSet) -> None:
    """Open a row for each host in the chosen set, before any of the hosts is leased."""
    now = context.clock.now()
    for host, rate in zip(chosen.hosts, chosen.rates, strict=True):
        context.ledger.open(_spending(record, chosen.pool, host, rate, now))


def start_billing(context: HostsContext, record: ClusterRecord) -> None:
    """Start billing, after every host has been leased."""
    now = context.clock.now()
    for entry in ClusterBilling(context).rows(record):
        if entry.state == "open" and entry.launched_at is None:
            host = entry.spending.zone
            context.ledger.launched(entry.spending.entry_id, [f"{host}@{record.name}"], now)


def restore_rows(context: HostsContext, record: ClusterRecord, nodes: Iterable[Node]) -> None:
    """Restore missing rows of hosts. The hosts are billed from the record's creation time at the recorded price."""
    missing = missing_nodes(record, ClusterBilling(context).rows(record))
    if not missing or has_failed(context.ledger):
        return
    rate = Decimal(record.placement.node_hourly_usd) or None
    for host in (node.zone for node in nodes if f"{node.zone}@{record.name}" in missing):
        row = _spending(record, "", host, rate, record.identity.created_at)
        if not reopen_row(context.ledger, row):
            return
        context.ledger.launched(row.entry_id, [f"{host}@{record.name}"], record.identity.created_at)
    context.emit(Note(f"restored missing ledger rows from the cluster's record: {', '.join(missing)}"))


def close_rows(context: HostsContext, record: ClusterRecord, hosts: Iterable[str]) -> None:
    """Close the rows of released hosts. An expired lease is billed only until its expiry."""
    at, released = min(context.clock.now(), record.lifecycle.expires_at), frozenset(hosts)
    rows = [
        entry
        for entry in ClusterBilling(context).rows(record)
        if entry.state == "open" and entry.spending.zone in released
    ]
    for entry in rows:
        context.ledger.close(entry.spending.entry_id, max(at, entry.launched_at or entry.spending.opened_at))


def _spending(record: ClusterRecord, pool: str, host: str, rate: Decimal | None, at: datetime) -> Spending:
    return Spending(
        # The time makes the ID unique: a retry on the same host opens a new row, after the first row was closed.
        entry_id=f"{record.identity.token}/{host}/{int(at.timestamp() * 1000)}",
        cluster=record.name,
        run_id=record.identity.run_id,
        recipe=record.identity.recipe,
        owner=record.identity.owner,
        team=record.identity.team,
        target=record.identity.target,
        simulated=False,
        account=record.identity.account,
        endpoint=record.identity.endpoint,
        region=pool,
        zone=host,
        instance_type=record.placement.instance_type,
        market="own",
        nodes=1,
        node_hourly_usd=rate or Decimal(0),
        opened_at=at,
        expires_at=record.lifecycle.expires_at,
        beside=() if rate is not None else (Surcharge("host", 1, None),),
    )
