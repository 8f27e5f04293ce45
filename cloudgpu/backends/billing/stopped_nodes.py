"""End the costs of nodes that ended because the rehearsal cloud was stopped."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from cloudgpu.backends.billing.cost_ledger import CostLedger
from cloudgpu.ledger.entry import LedgerEntry, PartEnd
from cloudgpu.state.cluster_record import last_end


def until_stop(row: LedgerEntry, ended: Mapping[str, datetime], now: datetime) -> LedgerEntry:
    """Return the ledger row, with the end of its nodes if all of them ended because the rehearsal cloud was stopped.

    A NAT gateway and Elastic IPs outlast a stop, and are billed until they are deleted.

    Args:
        row: The ledger row; returned unchanged if the end of its nodes is recorded.
        ended: Instance ID -> time of the stop that ended the instance.
        now: The current time, to which a later time of a stop is limited.
    """
    end = last_end(row.instance_ids, ended)
    recorded = row.state == "closed" or "nodes" in row.parts
    if recorded or not row.spending.simulated or end is None:
        return row
    return replace(row, parts={**row.parts, "nodes": PartEnd(row.within_lifetime(end, now))})


def record_stop(ledger: CostLedger, ended: Mapping[str, datetime], now: datetime) -> None:
    """Record in the ledger when nodes ended because the rehearsal cloud was stopped."""
    for row in ledger.entries(state="open"):
        stopped = until_stop(row, ended, now)
        if stopped is not row:
            ledger.part_ended(row.spending.entry_id, "nodes", stopped.parts["nodes"].at)
