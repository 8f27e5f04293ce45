"""Ledger rows of nodes that ended because the rehearsal cloud was stopped."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from cloudgpu.backends.billing.cluster_billing import record_stop, until_stop
from cloudgpu.ledger.entry import PartEnd, Spending, Surcharge
from cloudgpu.ledger.store import open_ledger

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
START = NOW - timedelta(hours=2)
STOP = NOW - timedelta(hours=1)
ENDED = {"i-1": STOP - timedelta(minutes=5), "i-2": STOP}


@pytest.fixture
def ledger(tmp_path):
    with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        yield ledger


def launched(ledger, *instance_ids, target="rehearsal", gateway=False, at=START):
    """Open a row of two nodes at one dollar an hour each."""
    row = Spending(
        entry_id="t/us-east-1c/p3dn.24xlarge/on-demand", cluster="lab", run_id="", recipe="plain", owner="ann", team="",
        target=target, simulated=target == "rehearsal", account="1", endpoint="", region="us-east-1", zone="us-east-1c",
        instance_type="p3dn.24xlarge", market="on-demand", nodes=2, node_hourly_usd=Decimal(1), opened_at=at,
        expires_at=NOW + timedelta(hours=9), beside=(Surcharge("gateway", 1, Decimal("0.5")),) if gateway else (),
    )  # fmt: skip
    ledger.open(row)
    if instance_ids:
        ledger.launched(row.entry_id, instance_ids, at)


def end_of_nodes(ledger):
    (entry,) = ledger.entries(cluster="lab")
    return entry.parts.get("nodes")


def total(ledger, now=NOW):
    report = ledger.report(by="cluster", now=now)
    return report.real_usd + report.simulated_usd


def test_nodes_cost_nothing_after_the_stop(ledger):
    launched(ledger, "i-1", "i-2")
    record_stop(ledger, ENDED, NOW)
    assert end_of_nodes(ledger) == PartEnd(STOP)
    assert total(ledger) == total(ledger, NOW + timedelta(days=9)) == 2
    record_stop(ledger, {name: NOW for name in ENDED}, NOW)  # a recorded end does not change
    assert end_of_nodes(ledger) == PartEnd(STOP)


def test_gateway_costs_money_until_it_is_deleted(ledger):
    launched(ledger, "i-1", "i-2", gateway=True)
    record_stop(ledger, ENDED, NOW)
    assert total(ledger, NOW + timedelta(hours=10)) - total(ledger) == 5


@pytest.mark.parametrize(
    ("instance_ids", "target"), [((), "rehearsal"), (("i-1", "i-3"), "rehearsal"), (("i-1", "i-2"), "aws")]
)
def test_nodes_that_may_be_running_still_cost_money(ledger, instance_ids, target):
    launched(ledger, *instance_ids, target=target)
    record_stop(ledger, ENDED, NOW)
    assert end_of_nodes(ledger) is None
    assert total(ledger, NOW + timedelta(hours=1)) - total(ledger) == 2


def test_closed_row_is_unchanged(ledger):
    launched(ledger, "i-1", "i-2")
    ledger.close("t/us-east-1c/p3dn.24xlarge/on-demand", NOW)
    record_stop(ledger, ENDED, NOW)
    (entry,) = ledger.entries(cluster="lab")
    assert until_stop(entry, dict.fromkeys(ENDED, NOW), NOW + timedelta(days=1)) is entry
    assert entry.parts == {}
    assert total(ledger) == 4


@pytest.mark.parametrize(
    ("stop", "expected"), [(NOW + timedelta(days=1), NOW), (START - timedelta(days=1), START)], ids=["later", "earlier"]
)
def test_end_is_within_the_lifetime_of_the_row(ledger, stop, expected):
    """The clock of this machine may have been set between the stop and the command."""
    launched(ledger, "i-1", "i-2")
    record_stop(ledger, dict.fromkeys(ENDED, stop), NOW)
    assert end_of_nodes(ledger) == PartEnd(expected)
