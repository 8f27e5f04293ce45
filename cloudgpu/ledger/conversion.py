"""Convert rows of the ledger to objects, without a database library, so that reports need not import one."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from decimal import Decimal
from typing import Any

from cloudgpu.ledger.billing import Charge, RunInterval
from cloudgpu.ledger.entry import LedgerEntry, Part, PartEnd, Spending, Surcharge, from_text

EntryAttempt = tuple[str, int]
"""Entry ID and number of the launch attempt. A closed entry can be reopened for another attempt."""
SPENDING_COLUMNS = tuple(field.name for field in fields(Spending) if field.name != "beside")
"""Columns of the table `opened` that are fields of a `Spending`."""


def entry_from_rows(
    row: Mapping[Any, Any],
    instances: Mapping[EntryAttempt, Sequence[str]],
    surcharges: Mapping[EntryAttempt, Sequence[Surcharge]],
    parts: Mapping[EntryAttempt, Mapping[Part, PartEnd]],
) -> LedgerEntry:
    """Combine an attempt's row with its instances, surcharges and part ends. The row may lack `extended_to`."""
    key = row["entry_id"], row["attempt"]
    values = {name: row[name] for name in SPENDING_COLUMNS} | {
        "simulated": bool(row["simulated"]),
        "node_hourly_usd": Decimal(row["node_hourly_usd"]),
        "opened_at": from_text(row["opened_at"]),
        "expires_at": from_text(row.get("extended_to") or row["expires_at"]),
        "beside": tuple(surcharges.get(key, ())),
    }
    return LedgerEntry(
        spending=Spending(**values),
        state="closed" if row["closed_at"] else "open",
        instance_ids=tuple(instances.get(key, ())),
        launched_at=from_text(row["launched_at"]) if row["launched_at"] else None,
        closed_at=from_text(row["closed_at"]) if row["closed_at"] else None,
        parts=dict(parts.get(key, {})),
    )


def group_instances(instance_rows: Iterable[Sequence[Any]]) -> Mapping[EntryAttempt, Sequence[str]]:
    """Group rows of `instances_query` by entry and attempt."""
    of_attempt: dict[EntryAttempt, list[str]] = defaultdict(list)
    for entry_id, attempt, instance_id in instance_rows:
        of_attempt[entry_id, attempt].append(instance_id)
    return of_attempt


def group_surcharges(surcharge_rows: Iterable[Sequence[Any]]) -> Mapping[EntryAttempt, Sequence[Surcharge]]:
    """Group rows of `surcharges_query` by entry and attempt."""
    of_attempt: dict[EntryAttempt, list[Surcharge]] = defaultdict(list)
    for entry_id, attempt, kind, count, nano, whole_hours in surcharge_rows:
        usd = None if nano is None else Decimal(nano).scaleb(-9)
        of_attempt[entry_id, attempt].append(Surcharge(kind, count, usd, bool(whole_hours)))
    return of_attempt


def group_part_ends(part_rows: Iterable[Sequence[Any]]) -> Mapping[EntryAttempt, Mapping[Part, PartEnd]]:
    """Group rows of `part_ends_query` by entry and attempt."""
    of_attempt: dict[EntryAttempt, dict[Part, PartEnd]] = defaultdict(dict)
    for entry_id, attempt, part, ended_at, estimated in part_rows:
        of_attempt[entry_id, attempt][part] = PartEnd(from_text(ended_at), bool(estimated))
    return of_attempt


def charge_from_row(row: Sequence[Any]) -> Charge:
    """Convert a row of `charges_query`, without its first two columns (entry ID and attempt), to a charge."""
    cluster, run_id, recipe, owner, team, simulated, nodes, price, launched_at, opened_at, closed_at, *rest = row
    by_second, by_hour, unpriced, instance_type = rest
    return Charge(
        cluster=cluster,
        run_id=run_id,
        recipe=recipe,
        owner=owner,
        team=team,
        simulated=simulated,
        nodes=nodes,
        node_hourly_usd=price,
        launched=launched_at is not None,
        start=from_text(launched_at or opened_at),
        end=from_text(closed_at) if closed_at else None,
        beside_nano_usd=int(by_second),
        whole_hour_nano_usd=int(by_hour),
        unpriced=bool(unpriced),
        instance_type=instance_type,
    )


def run_from_row(row: Sequence[Any]) -> RunInterval:
    """Convert a row with the columns of the `RUNS` query to a run interval."""
    run_id, cluster, recipe, owner, team, started_at, state, ended_at = row
    end = from_text(ended_at) if ended_at else None
    return RunInterval(run_id, cluster, recipe, owner, team, state or "running", from_text(started_at), end)
