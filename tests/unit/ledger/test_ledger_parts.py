"""Parts of an entry with their own end times (nodes, NAT gateway, Elastic IPs), known or estimated."""

from datetime import timedelta
from decimal import Decimal

import pytest

from cloudgpu.errors import LedgerError
from cloudgpu.ledger.billing import entry_usd
from cloudgpu.ledger.entry import PartEnd, Surcharge

HOUR = timedelta(hours=1)
BESIDE = (
    Surcharge("disks", 2, Decimal("0.5")),
    Surcharge("elastic-ips", 2, Decimal("0.01")),
    Surcharge("gateway", 1, Decimal("0.045"), whole_hours=True),
)


@pytest.fixture
def launched(ledger, make_spending, noon):
    ledger.open(make_spending(beside=BESIDE, node_hourly_usd=Decimal(10)))
    ledger.launched("e1", ["i-1", "i-2"], noon)
    return ledger


def bill(ledger, now, by="cluster", **more):
    report = ledger.report(by=by, now=now, **more)
    (entry,) = ledger.entries()
    assert more or sum(row.usd for row in report.rows) == entry_usd(entry, now) == report.real_usd
    return report.rows


def test_remaining_parts_cost_until_entry_is_closed(launched, noon):
    launched.part_ended("e1", "nodes", noon + 2 * HOUR)
    (row,) = bill(launched, noon + timedelta(hours=4, minutes=30))
    assert row.usd == 2 * (20 + Decimal("0.5")) + Decimal("4.5") * Decimal("0.01") + 5 * Decimal("0.045")
    assert (row.open_entries, row.estimated, row.node_hours) == (1, 0, 4)
    launched.close("e1", noon + 10 * HOUR)
    (row,) = bill(launched, noon + 99 * HOUR)
    assert row.usd == 2 * (20 + Decimal("0.5")) + 10 * Decimal("0.055")
    assert row.open_entries == 0


def test_every_part_is_billed_until_its_own_end(launched, noon):
    launched.part_ended("e1", "nodes", noon + 1 * HOUR)
    launched.part_ended("e1", "gateway", noon + 2 * HOUR)
    launched.part_ended("e1", "elastic-ips", noon + 3 * HOUR, estimated=True)
    launched.close("e1", noon + 3 * HOUR)
    (row,) = bill(launched, noon + 9 * HOUR)
    assert row.usd == Decimal("20.5") + 2 * Decimal("0.045") + 3 * Decimal("0.01")
    assert row.estimated == 1
    (entry,) = launched.entries()
    assert entry.parts["elastic-ips"] == PartEnd(noon + 3 * HOUR, estimated=True)


def test_first_part_end_wins_and_closed_entry_is_unchanged(launched, noon):
    launched.part_ended("e1", "nodes", noon + HOUR)
    launched.part_ended("e1", "nodes", noon + 5 * HOUR, estimated=True)
    launched.close("e1", noon + HOUR)
    launched.part_ended("e1", "gateway", noon)
    (entry,) = launched.entries()
    assert entry.parts == {"nodes": PartEnd(noon + HOUR)}


def test_part_end_requires_existing_entry(ledger, noon):
    with pytest.raises(LedgerError, match="no entry e9"):
        ledger.part_ended("e9", "nodes", noon)


def test_part_end_applies_only_to_current_opening(launched, make_spending, noon):
    launched.part_ended("e1", "nodes", noon + HOUR, estimated=True)
    launched.close("e1", noon + HOUR)
    launched.open(make_spending(beside=BESIDE, opened_at=noon + 2 * HOUR))
    first, second = launched.entries()
    assert set(first.parts) == {"nodes"}
    assert second.parts == {}


def test_cost_after_node_end_is_idle_cost_of_cluster(launched, noon):
    launched.part_ended("e1", "nodes", noon + HOUR)
    (row,) = bill(launched, noon + 2 * HOUR, by="run")
    assert row.key == "(idle) red"


def test_report_since_counts_only_parts_still_running(launched, noon):
    launched.part_ended("e1", "nodes", noon + HOUR)
    (row,) = bill(launched, noon + 4 * HOUR, since=noon + 2 * HOUR)
    assert row.usd == 2 * Decimal("0.055")
    assert row.node_hours == 0
