"""What the ledger stores, and that it is durable."""

import dataclasses
import sqlite3
import stat
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from cloudgpu.errors import LedgerError
from cloudgpu.ledger.entry import Surcharge
from cloudgpu.ledger.store import open_ledger


def test_entry_is_read_back_unchanged(ledger, make_spending):
    spending = make_spending(node_hourly_usd=Decimal("0.000000001"), owner="zoë ☃", simulated=True)
    beside = (Surcharge("disks", 2, Decimal("0.044444445")), Surcharge("gateway", 1, None, whole_hours=True))
    spending = dataclasses.replace(spending, beside=beside)
    ledger.open(spending)
    (entry,) = ledger.entries()
    assert entry.spending == spending
    assert (entry.state, entry.instance_ids, entry.launched_at, entry.closed_at) == ("open", (), None, None)


def test_opening_entry_twice_keeps_first_row(ledger, make_spending, noon):
    ledger.open(make_spending())
    ledger.open(make_spending(opened_at=noon + timedelta(hours=1)))
    assert [entry.spending.opened_at for entry in ledger.entries()] == [noon]


def test_entry_records_launch_and_first_close(ledger, make_spending, noon):
    ledger.open(make_spending())
    ledger.launched("e1", ["i-2", "i-1"], noon + timedelta(seconds=5))
    ledger.launched("e1", ["i-1", "i-3"], noon + timedelta(seconds=50))
    ledger.close("e1", noon + timedelta(hours=1))
    ledger.close("e1", noon + timedelta(hours=2))
    (entry,) = ledger.entries()
    assert entry.instance_ids == ("i-2", "i-1", "i-3")
    assert entry.launched_at == noon + timedelta(seconds=5)
    assert (entry.state, entry.closed_at) == ("closed", noon + timedelta(hours=1))


def test_closed_entry_can_be_opened_again(ledger, make_spending, noon):
    ledger.open(make_spending())
    ledger.close("e1", noon)
    ledger.open(make_spending(opened_at=noon + timedelta(hours=1)))
    ledger.launched("e1", ["i-1", "i-2"], noon + timedelta(hours=1))
    first, second = ledger.entries()
    assert (first.state, first.instance_ids, first.closed_at) == ("closed", (), noon)
    assert (second.state, second.instance_ids, second.closed_at) == ("open", ("i-1", "i-2"), None)
    ledger.close("e1", noon + timedelta(hours=2))
    assert [entry.closed_at for entry in ledger.entries()] == [noon, noon + timedelta(hours=2)]
    assert ledger.report(by="user", now=noon + timedelta(days=1)).real_usd == Decimal("62.424")


def test_launch_after_close_raises_error(ledger, make_spending, noon):
    ledger.open(make_spending())
    ledger.close("e1", noon)
    with pytest.raises(LedgerError, match=r"is closed, but its launch created i-9"):
        ledger.launched("e1", ["i-9"], noon)


@pytest.mark.parametrize("act", ["launched", "close"])
def test_unknown_entry_raises_error(ledger, noon, act):
    with pytest.raises(LedgerError, match="no entry e9"):
        ledger.launched("e9", ["i-1"], noon) if act == "launched" else ledger.close("e9", noon)


@pytest.mark.parametrize(
    "changes",
    [
        {"node_hourly_usd": Decimal("NaN")},
        {"node_hourly_usd": Decimal(-1)},
        {"nodes": 0},
        {"beside": (Surcharge("disks", 1, Decimal(-1)),)},
        {"beside": (Surcharge("disks", 1, Decimal("Infinity")),)},
    ],
)
def test_invalid_cost_values_are_rejected(ledger, make_spending, changes):
    with pytest.raises(LedgerError, match="is not a valid cost"):
        ledger.open(make_spending(**changes))
    assert ledger.entries() == ()


def test_time_without_utc_offset_is_rejected(ledger, make_spending):
    with pytest.raises(LedgerError, match="without a UTC offset"):
        ledger.open(make_spending(opened_at=datetime(2026, 1, 1)))  # noqa: DTZ001


def test_entries_are_filtered_by_cluster_state_and_time(ledger, make_spending, noon):
    for number, cluster in enumerate(["red", "blue", "red"]):
        ledger.open(make_spending(f"e{number}", cluster=cluster, opened_at=noon + timedelta(minutes=number)))
    ledger.launched("e0", ["i-0"], noon)
    ledger.launched("e1", ["i-1"], noon)
    ledger.close("e0", noon + timedelta(hours=1))

    def chosen(**by):
        return [(entry.spending.entry_id, entry.instance_ids) for entry in ledger.entries(**by)]

    assert chosen(cluster="red") == [("e0", ("i-0",)), ("e2", ())]
    assert chosen(state="open") == [("e1", ("i-1",)), ("e2", ())]
    assert chosen(state="closed") == [("e0", ("i-0",))]
    assert chosen(since=noon + timedelta(hours=1)) == [("e0", ("i-0",)), ("e1", ("i-1",)), ("e2", ())]
    assert chosen(since=noon + timedelta(hours=1, microseconds=1)) == [("e1", ("i-1",)), ("e2", ())]


def test_entries_are_filtered_by_cluster_token(ledger, make_spending):
    for entry_id in ("t1/a/spot", "t1/b/spot", "t10/a/spot", "t1-/a", "t1", "t2/a", "T1/a"):
        ledger.open(make_spending(entry_id, cluster="red"))
    ledger.open(make_spending("t1/c/spot", cluster="blue"))

    def chosen(**by):
        return [entry.spending.entry_id for entry in ledger.entries(**by)]

    assert chosen(token="t1", cluster="red") == ["t1/a/spot", "t1/b/spot"]
    assert chosen(token="t1") == ["t1/a/spot", "t1/b/spot", "t1/c/spot"]
    assert chosen(token="t1", cluster="green") == []
    ledger.close("t1/a/spot", make_spending().opened_at)
    assert chosen(token="t1", cluster="red", state="open") == ["t1/b/spot"]


def test_run_start_and_end_are_recorded_once(ledger, noon):
    ledger.run_started("r1", "red", "quickstart", "ann", "vision", noon)
    ledger.run_started("r1", "red", "quickstart", "ann", "vision", noon + timedelta(hours=1))
    ledger.run_ended("r1", "succeeded", noon + timedelta(minutes=5))
    ledger.run_ended("r1", "failed", noon + timedelta(minutes=6))
    (run,) = ledger.runs()
    assert (run.started_at, run.state, run.ended_at) == (noon, "succeeded", noon + timedelta(minutes=5))
    with pytest.raises(LedgerError, match="no run r2"):
        ledger.run_ended("r2", "failed", noon)


def test_entries_persist_after_reopening_ledger(ledger, ledger_path: Path, make_spending, noon):
    ledger.open(make_spending())
    ledger.launched("e1", ["i-1", "i-2"], noon)
    before = ledger.entries()
    ledger.engine.dispose()
    with open_ledger(f"sqlite:///{ledger_path}") as again:
        assert again.entries() == before
        again.open(make_spending("e2"))
        assert len(again.entries()) == 2


def test_ledger_rows_are_append_only(ledger, ledger_path: Path, make_spending, noon):
    ledger.open(make_spending(beside=(Surcharge("disks", 2, Decimal("0.05")),)))
    ledger.launched("e1", ["i-1"], noon)
    ledger.close("e1", noon)
    ledger.run_started("r1", "red", "quickstart", "ann", "", noon)
    ledger.run_ended("r1", "failed", noon)
    rows = {"opened": "cluster", "beside": "kind", "launched": "launched_at", "closed": "closed_at"}
    with sqlite3.connect(ledger_path) as direct:
        for table, column in (rows | {"run_started": "owner", "run_ended": "state"}).items():
            for statement in (f"DELETE FROM {table}", f"UPDATE {table} SET {column} = 'x'"):
                with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                    direct.execute(statement)
    direct.close()
    assert len(ledger.entries()) == 1


def test_commits_are_synced_and_ledger_file_is_private(ledger, ledger_path: Path):
    with ledger.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    assert stat.S_IMODE(ledger_path.stat().st_mode) == 0o600


def test_every_spending_field_is_stored(ledger, make_spending):
    odd = {"nodes": 7, "simulated": True, "node_hourly_usd": Decimal("1.5")}
    texts = {
        one.name: f"<{one.name}>"
        for one in dataclasses.fields(make_spending())
        if one.type is str and one.name != "entry_id"
    }
    spending = make_spending(**odd, **texts)
    ledger.open(spending)
    assert ledger.entries()[0].spending == spending


def test_extension_moves_expiry_of_open_entry_and_latest_wins(ledger, make_spending, noon):
    first = make_spending("e1")
    ledger.open(first)
    later = first.expires_at + timedelta(hours=2)
    for until in (first.expires_at + timedelta(hours=1), later, later):
        ledger.extend("e1", until, noon)
    (entry,) = ledger.entries()
    assert entry.spending == dataclasses.replace(first, expires_at=later)
    ledger.close("e1", noon)
    with pytest.raises(LedgerError, match="is closed"):
        ledger.extend("e1", later, noon)
    ledger.open(make_spending("e1"))
    assert ledger.entries()[-1].spending.expires_at == first.expires_at


def test_format_1_ledger_is_upgraded_and_keeps_entries(ledger, ledger_path: Path, make_spending, noon):
    ledger.open(make_spending("e1"))
    ledger.engine.dispose()
    with sqlite3.connect(ledger_path) as direct:
        direct.execute("DROP TABLE extended")
        direct.execute("DROP TABLE beside")
        direct.execute("DELETE FROM cloudgpu_ledger")
        direct.execute("INSERT INTO cloudgpu_ledger (version) VALUES (1)")
    direct.close()
    with open_ledger(f"sqlite:///{ledger_path}") as upgraded:
        upgraded.extend("e1", noon + timedelta(days=1), noon)
        assert [entry.spending.expires_at for entry in upgraded.entries()] == [noon + timedelta(days=1)]
    with sqlite3.connect(ledger_path) as direct, pytest.raises(sqlite3.IntegrityError, match="append-only"):
        direct.execute("DELETE FROM extended")
    direct.close()
