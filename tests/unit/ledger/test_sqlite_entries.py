"""`sqlite_entries` returns what `Ledger.entries` returns, without SQLAlchemy."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from cloudgpu.backends.billing.cost_ledger import LenientLedger
from cloudgpu.ledger.entry import Surcharge
from cloudgpu.ledger.summary_queries import sqlite_entries


@pytest.fixture
def url(ledger):
    return f"sqlite:///{ledger.engine.url.database}"


@pytest.fixture
def filled(ledger, make_spending, noon):
    """Two clusters; the token of one is a prefix of the other's."""
    for token in ("t1", "t12"):
        spending = replace(make_spending(), beside=(Surcharge("disks", 2, Decimal("0.044444445")),))
        ledger.open(replace(spending, entry_id=f"{token}/a"))
        ledger.close(f"{token}/a", noon)
        ledger.open(replace(spending, entry_id=f"{token}/b"))
        ledger.launched(f"{token}/b", ["i-1", "i-2"], noon + timedelta(seconds=5))
        ledger.part_ended(f"{token}/b", "nodes", noon + timedelta(hours=1), estimated=True)
    return ledger


def test_sqlite_entries_of_token_equal_ledger_entries(filled, url):
    found = sqlite_entries(url, "t1")
    assert found == filled.entries(token="t1")
    assert [entry.spending.entry_id for entry in found] == ["t1/a", "t1/b"]
    assert sqlite_entries(url, "t") == ()


def test_unsupported_ledger_url_returns_none(tmp_path):
    assert sqlite_entries(f"sqlite:///{tmp_path}/none.sqlite3", "t1") is None
    assert sqlite_entries("postgresql://127.0.0.1/x", "t1") is None
    assert list(tmp_path.iterdir()) == []


def test_lenient_ledger_opens_ledger_only_when_needed(filled, url):
    opened = []
    lenient = LenientLedger(lambda: opened.append(1) or filled, lambda token: sqlite_entries(url, token))
    assert len(lenient.entries(cluster=None, token="t1")) == 2
    assert lenient.entries(cluster="another", token="t1") == ()
    assert opened == []
    slow = LenientLedger(lambda: opened.append(1) or filled, lambda _token: None)
    assert slow.entries(token="t1") == filled.entries(token="t1")
    assert opened == [1]
