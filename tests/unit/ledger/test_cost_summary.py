"""A report from the summary tables always equals a report computed from the events."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudgpu.errors import LedgerError
from cloudgpu.ledger import database, schema, summary, summary_queries
from cloudgpu.ledger.billing import charges as charges_of
from cloudgpu.ledger.entry import VERSION, Surcharge
from cloudgpu.ledger.report import PERIODS, By, ReportQuery, report
from cloudgpu.ledger.store import Ledger, open_ledger
from cloudgpu.ledger.summary_queries import sqlite_report

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
NOW = NOON + timedelta(hours=2)
EVERY_WAY = get_args(By)
GPU_OF = {"p3dn.24xlarge": "V100", "p3.2xlarge": "V100", "g5.xlarge": "A10G", "": "(none)"}
DISKS = Surcharge("disks", 2, Decimal("0.0444445"))
GATEWAY = Surcharge("gateway", 1, Decimal("0.045"), whole_hours=True)
ADDRESSES = Surcharge("elastic-ips", 1, None)
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where a commit costs no disk write: a history has dozens of them."""
SUMMARY = [table.name for table in schema.SUMMARY]


def after(**time: float) -> datetime:
    return NOON + timedelta(**time)


def url_of(ledger: Ledger) -> str:
    return f"sqlite:///{ledger.engine.url.database}"


def is_complete(ledger: Ledger) -> bool:
    with database.read_transaction(ledger.engine) as connection:
        return summary_queries.is_complete(summary.reader(connection))


def same_as_the_events(ledger: Ledger, *moments: datetime) -> None:
    charges = [charge for entry in ledger.entries() for charge in charges_of(entry)]
    runs = ledger.runs()
    first, last = (min(moments), max(moments)) if moments else (None, None)
    windows = {(None, None), (first, None), (None, last), (first, last if first != last else None)}
    for by, (since, until) in product(EVERY_WAY, windows):
        query = ReportQuery(by, NOW, since, until, gpu_of=GPU_OF.__getitem__)
        expected = report(charges, runs, query)
        assert ledger.query(query) == expected
        # It sums the same charges by the same function, whatever the key.
        if by == "run" or (since, until) == (None, None):
            assert ledger.recomputed_report(query) == expected
        assert sqlite_report(url_of(ledger), query) == expected
    for by in EVERY_WAY:
        query = ReportQuery(by, NOW, first, gpu_of=GPU_OF.__getitem__)
        expected = report(charges, runs, query)
        limit = len(expected.rows) // 2
        rows = expected.rows[len(expected.rows) - limit :] if by in PERIODS else expected.rows[:limit]
        limited = replace(expected, rows=rows, omitted=len(expected.rows) - len(rows))
        assert ledger.query(replace(query, limit=limit)) == limited
        assert sqlite_report(url_of(ledger), replace(query, limit=limit)) == limited


def contents(ledger: Ledger) -> list[object]:
    """Return all rows of all tables. Equal contents give equal reports."""
    with database.read_transaction(ledger.engine) as connection:
        return [connection.execute(sa.select(table)).all() for table in schema.metadata.sorted_tables]


def forget_summary(ledger: Ledger) -> None:
    with database.write_transaction(ledger.engine) as connection:
        for table in SUMMARY:
            connection.exec_driver_sql(f"DELETE FROM {table}")


moments = st.integers(-30, 5000).map(lambda seconds: after(seconds=seconds))
moments |= st.integers(-40, 1).map(lambda hours: after(hours=hours))
clusters = st.sampled_from(["red", "red", "red", "blue", "storage data"])
Step = tuple[str, tuple[Any, ...]]


@st.composite
def lives_of_an_entry(draw, entry_id: str) -> list[Step]:
    """Generate the calls for one entry, which may stay open, never launch, or be opened again."""
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 2))):
        changes = {
            "cluster": draw(clusters),
            "run_id": draw(st.sampled_from(["", "r0", "r1", "gone"])),
            "recipe": draw(st.sampled_from(["", "a"])),
            "owner": draw(st.sampled_from(["", "ann", "bob"])),
            "team": draw(st.sampled_from(["", "vision"])),
            "simulated": draw(st.booleans()),
            "nodes": draw(st.integers(1, 3)),
            "instance_type": draw(st.sampled_from(sorted(GPU_OF))),
            "node_hourly_usd": draw(st.sampled_from([Decimal("31.212"), Decimal("0.333333333")])),
            "opened_at": draw(moments),
            "beside": tuple(draw(st.sets(st.sampled_from([DISKS, GATEWAY, ADDRESSES])))),
        }
        steps.append(("open", (entry_id, changes)))
        if draw(st.integers(0, 5)):
            instances = [f"i-{number}" for number in range(draw(st.integers(1, 3)))]
            steps.append(("launched", (entry_id, instances, draw(moments))))
        for part in draw(st.sets(st.sampled_from(["nodes", "gateway", "elastic-ips"]))):
            steps.append(("part_ended", (entry_id, part, draw(moments), draw(st.booleans()))))
        if draw(st.integers(0, 4)):
            steps.append(("close", (entry_id, draw(moments))))
    return steps


@st.composite
def lives_of_a_run(draw, run_id: str) -> list[Step]:
    steps: list[Step] = [
        ("run_started", (run_id, draw(clusters), draw(st.sampled_from(["", "a", "b"])), "ann", "vision", draw(moments)))
    ]
    if draw(st.integers(0, 3)):
        steps.append(("run_ended", (run_id, "failed", draw(moments))))
    return steps


@st.composite
def histories(draw) -> list[Step]:
    """Generate calls for several entries and runs, in any order, with times that may run backward."""
    lives = [draw(lives_of_an_entry(f"e{number}")) for number in range(draw(st.integers(1, 3)))]
    lives += [draw(lives_of_a_run(f"r{number}")) for number in range(draw(st.integers(0, 4)))]
    turns = draw(st.permutations([number for number, life in enumerate(lives) for _ in life]))
    following = [iter(life) for life in lives]
    return [next(following[turn]) for turn in turns]


def perform(ledger: Ledger, verb: str, arguments: tuple[Any, ...], make_spending: Callable[..., Any]) -> None:
    with suppress(LedgerError):  # a launch is too late for its entry
        match verb, arguments:
            case "open", (entry_id, changes):
                ledger.open(make_spending(entry_id, **changes))
            case "part_ended", (entry_id, part, at, estimated):
                ledger.part_ended(entry_id, part, at, estimated=estimated)
            case _:
                getattr(ledger, verb)(*arguments)


@dataclass(frozen=True)
class Limits:
    few_runs: int
    batch: int


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param(Limits(1000, 500), id="as released"),
        pytest.param(Limits(0, 1), id="smallest", marks=pytest.mark.slow),
    ],
)
def test_summary_report_equals_report_from_events(make_spending, monkeypatch, limits):
    monkeypatch.setattr(summary_queries, "_FEW_RUNS", limits.few_runs)
    monkeypatch.setattr(summary_queries, "_BATCH", limits.batch)
    closed = []

    @given(histories(), st.lists(moments, max_size=2))
    @settings(max_examples=40, deadline=None)
    def holds(history, since):
        with (
            tempfile.TemporaryDirectory(dir=MEMORY) as folder,
            open_ledger(f"sqlite:///{folder}/ledger.sqlite3") as ledger,
        ):
            for verb, arguments in history:
                perform(ledger, verb, arguments, make_spending)
            assert is_complete(ledger)
            same_as_the_events(ledger, *since)
            with database.read_transaction(ledger.engine) as connection:
                written = connection.execute(sa.select(schema.cost_summary)).all()
            closed.extend(written)
            forget_summary(ledger)
            assert not is_complete(ledger)
            assert ledger.query(ReportQuery("user", NOW)) == ledger.recomputed_report(ReportQuery("user", NOW))
            assert is_complete(ledger)
            with database.read_transaction(ledger.engine) as connection:
                assert set(connection.execute(sa.select(schema.cost_summary)).all()) == set(written)

    holds()
    assert {row.share for row in closed} >= {0, 1}, "no history shared a cluster between runs"
    assert {row.charge for row in closed} >= {0, 1}, "no history had an entry whose parts ended apart"


def an_hour(ledger: Ledger, make_spending: Callable[..., Any], entry_id: str = "e1", **changes: Any) -> None:
    ledger.open(make_spending(entry_id, nodes=1, node_hourly_usd=Decimal("3.6"), **changes))
    ledger.launched(entry_id, ["i-1"], NOON)
    ledger.close(entry_id, after(hours=1))


def test_closed_entries_are_summed_from_summary_table(ledger, make_spending):
    """The events are not read: a changed amount in the summary changes the report."""
    an_hour(ledger, make_spending)
    with database.write_transaction(ledger.engine) as connection:
        connection.exec_driver_sql("UPDATE cost_summary SET micro_usd = 7")
    assert [ledger.report(by=by, now=NOW).real_usd for by in EVERY_WAY] == [Decimal("0.000007")] * 9


def test_run_recorded_after_cluster_end_gets_cost_share(ledger, make_spending):
    an_hour(ledger, make_spending)
    ledger.run_started("r1", "red", "a", "ann", "", after(minutes=30))
    assert {row.key: row.usd for row in ledger.report(by="run", now=NOW).rows} == {
        "r1": Decimal("1.8"),
        "(idle) red": Decimal("1.8"),
    }
    ledger.run_ended("r1", "failed", after(minutes=45))
    assert {row.key: row.usd for row in ledger.report(by="run", now=NOW).rows} == {
        "r1": Decimal("0.9"),
        "(idle) red": Decimal("2.7"),
    }
    same_as_the_events(ledger)


def test_run_on_partly_open_cluster_counts_once(ledger, make_spending):
    an_hour(ledger, make_spending)
    ledger.open(make_spending("e2", nodes=1))
    ledger.launched("e2", ["i-2"], NOON)
    ledger.run_started("r1", "red", "a", "ann", "", after(minutes=30))
    assert [row.runs for row in ledger.report(by="user", now=NOW).rows] == [1]
    same_as_the_events(ledger, after(minutes=10), NOON, after(hours=1))


def test_amounts_above_64_bits_are_reported_without_summary(ledger, make_spending):
    for number in range(3):
        an_hour(ledger, make_spending, f"e{number}")
    ledger.open(make_spending("big", node_hourly_usd=Decimal("1e20")))
    ledger.launched("big", ["i-1"], NOON)
    ledger.close("big", after(hours=1))
    assert ledger.report(by="user", now=NOW).real_usd == Decimal("1e20") + 3 * Decimal("3.6")
    same_as_the_events(ledger, after(minutes=10))
    assert is_complete(ledger)


def test_sqlite_report_declines_unsupported_ledgers(ledger, ledger_path: Path, make_spending, tmp_path: Path):
    url = f"sqlite:///{ledger_path}"

    def reported(of: str = url) -> bool:
        return sqlite_report(of, ReportQuery("user", NOW)) is not None

    an_hour(ledger, make_spending)
    assert reported()
    missing = tmp_path / "missing.sqlite3"
    assert not reported(f"sqlite:///{missing}")
    assert not missing.exists()
    (tmp_path / "notes").write_text("dear diary")
    assert not reported(f"sqlite:///{tmp_path / 'notes'}")
    assert not reported("postgresql://ann@db/ledger")
    assert not reported("sqlite:///ledger.sqlite3")
    with database.write_transaction(ledger.engine) as connection:
        connection.exec_driver_sql("UPDATE cost_summary_state SET events = 99")
    assert not reported()
    ledger.report(by="user", now=NOW)
    assert reported()
    with database.write_transaction(ledger.engine) as connection:
        connection.exec_driver_sql(f"INSERT INTO cloudgpu_ledger VALUES ({VERSION + 1})")
    assert not reported()


def test_cost_command_imports_neither_sqlalchemy_nor_recipes(ledger, ledger_path: Path, make_spending, tmp_path: Path):
    an_hour(ledger, make_spending)
    script = (
        "import sys\nfrom cloudgpu.cli.main import main\nassert main(['cost', '--by', 'user']) == 0\n"
        "print(sorted({'sqlalchemy', 'cloudgpu.recipe.schema', 'cloudgpu.plan.costs'} & set(sys.modules)))"
    )
    environment = {"CLOUDGPU_HOME": str(tmp_path), "CLOUDGPU_LEDGER_URL": f"sqlite:///{ledger_path}"}
    shown = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.splitlines()
    assert shown[1].split()[:5] == ["ann", "2026-11-21", "1.000", "$3.60", "$3.60"]
    assert shown[-1] == "[]"


def test_events_written_by_older_version_are_included(ledger, make_spending):
    """A `train` started before an upgrade writes events but no summary."""
    an_hour(ledger, make_spending)
    late = make_spending("e2", cluster="blue")
    with database.write_transaction(ledger.engine) as connection:
        connection.execute(sa.insert(schema.opened).values(database_row(late)))
    assert not is_complete(ledger)
    assert {row.key: row.open_entries for row in ledger.report(by="cluster", now=NOW).rows} == {"red": 0, "blue": 1}
    assert is_complete(ledger)
    with database.write_transaction(ledger.engine) as connection:
        started = {"run_id": "r1", "cluster": "red", "recipe": "a", "owner": "ann", "team": ""}
        connection.execute(sa.insert(schema.run_started).values(**started, started_at="2026-11-21T12:30:00.000000Z"))
    an_hour(ledger, make_spending, "e3")  # a summary that lacks events is not completed by the next event
    assert not is_complete(ledger)
    same_as_the_events(ledger)
    assert is_complete(ledger)
    same_as_the_events(ledger)


def database_row(spending: Any) -> dict[str, object]:
    from cloudgpu.ledger import schema

    return schema.opened_row(spending, 1)


def test_summary_with_old_rules_version_is_recomputed(ledger, make_spending, monkeypatch):
    an_hour(ledger, make_spending)
    with database.write_transaction(ledger.engine) as connection:
        connection.exec_driver_sql("UPDATE cost_summary SET micro_usd = 7")
        connection.exec_driver_sql("UPDATE cost_summary_state SET rules = 0")
    assert ledger.report(by="user", now=NOW).real_usd == Decimal("3.6")
    assert ledger.report(by="user", now=NOW).real_usd == Decimal("3.6")
    assert is_complete(ledger)


def test_interrupted_write_keeps_event_and_summary_consistent(ledger, make_spending):
    """Interrupt every call before each of its statements, and then repeat the call."""
    calls = [
        lambda: ledger.open(make_spending(beside=(DISKS, GATEWAY))),
        lambda: ledger.launched("e1", ["i-1"], NOON),
        lambda: ledger.run_started("r1", "red", "a", "ann", "", after(minutes=10)),
        lambda: ledger.part_ended("e1", "nodes", after(minutes=50)),
        lambda: ledger.close("e1", after(hours=1)),
        lambda: ledger.run_ended("r1", "failed", after(minutes=20)),
        lambda: ledger.run_started("r2", "red", "b", "ann", "", after(minutes=15)),
    ]
    left, kills = 0, 0
    checked = []

    def end(*_: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt

    sa.event.listen(ledger.engine, "before_cursor_execute", end)
    try:
        for call in calls:
            for statements in range(100):
                left = statements
                try:
                    call()
                except KeyboardInterrupt:
                    kills += 1
                    left = 10**9
                    if contents(ledger) not in checked:
                        assert is_complete(ledger)
                        same_as_the_events(ledger)
                        checked.append(contents(ledger))
                else:
                    break
            left = 10**9
            same_as_the_events(ledger)
            checked.append(contents(ledger))
    finally:
        sa.event.remove(ledger.engine, "before_cursor_execute", end)
    assert kills > 40
    assert {row.key for row in ledger.report(by="run", now=NOW).rows} == {"r1", "r2", "(idle) red"}


def as_format_4(ledger: Ledger) -> None:
    with database.write_transaction(ledger.engine) as connection:
        for table in SUMMARY:
            connection.exec_driver_sql(f"DROP TABLE {table}")
        connection.exec_driver_sql("DROP INDEX run_ended_at")
        connection.exec_driver_sql("UPDATE cloudgpu_ledger SET version = 4")
    ledger.engine.dispose()


def filled(ledger: Ledger, make_spending: Callable[..., Any]) -> None:
    an_hour(ledger, make_spending)
    ledger.run_started("r1", "red", "a", "ann", "", after(minutes=30))
    ledger.run_ended("r1", "failed", after(minutes=45))
    ledger.open(make_spending("e2", cluster="blue", beside=(GATEWAY,)))
    ledger.launched("e2", ["i-2", "i-3"], NOON)
    ledger.part_ended("e2", "nodes", after(minutes=40), estimated=True)
    ledger.close("e2", after(minutes=90))
    ledger.open(make_spending("e3", simulated=True))


def test_format_4_ledger_is_upgraded_and_reports_same_costs(ledger, ledger_path: Path, make_spending):
    filled(ledger, make_spending)
    before = [ledger.report(by=by, now=NOW) for by in EVERY_WAY]
    as_format_4(ledger)
    with open_ledger(f"sqlite:///{ledger_path}") as updated:
        with database.read_transaction(updated.engine) as connection:
            assert connection.exec_driver_sql("SELECT MAX(version) FROM cloudgpu_ledger").scalar() == VERSION
            assert "run_ended_at" in {index["name"] for index in sa.inspect(connection).get_indexes("run_ended")}
        assert not is_complete(updated)
        updated.run_started("r2", "red", "b", "ann", "", after(minutes=50))
        updated.close("e3", after(minutes=30))
        same_as_the_events(updated, after(minutes=35))
        assert is_complete(updated)
        same_as_the_events(updated, after(minutes=35))
        assert [
            updated.report(by=by, now=NOW).rows != of_before.rows
            for by, of_before in zip(EVERY_WAY, before, strict=True)
        ]


def test_format_5_summary_is_replaced(ledger, ledger_path: Path, make_spending):
    """Format 5 stored no days. Its summary is dropped, and the next report computes the new one."""
    filled(ledger, make_spending)
    with database.write_transaction(ledger.engine) as connection:
        connection.exec_driver_sql("DROP TABLE cost_summary")
        connection.exec_driver_sql("CREATE TABLE cost_summary (entry_id VARCHAR(200) PRIMARY KEY)")
        connection.exec_driver_sql("UPDATE cloudgpu_ledger SET version = 5")
    ledger.engine.dispose()
    with open_ledger(f"sqlite:///{ledger_path}") as updated:
        assert not is_complete(updated)
        updated.close("e3", after(minutes=30))
        same_as_the_events(updated, after(minutes=35))
        assert is_complete(updated)
        same_as_the_events(updated, after(minutes=35))


def test_read_only_format_4_ledger_still_reports_costs(ledger, ledger_path: Path, make_spending, monkeypatch):
    filled(ledger, make_spending)
    before = [ledger.report(by=by, now=NOW) for by in EVERY_WAY]
    as_format_4(ledger)
    written = ledger_path.read_bytes()

    def failing(path):
        raise LedgerError("cannot write the ledger: Read-only file system")

    monkeypatch.setattr(database, "_touch", failing)
    with open_ledger(f"sqlite:///{ledger_path}", may_read_only=True) as copy:
        for _ in range(2):
            assert [copy.report(by=by, now=NOW) for by in EVERY_WAY] == before
        with pytest.raises(LedgerError, match="Read-only"):
            copy.close("e3", NOW)
        with database.read_transaction(copy.engine) as connection, pytest.raises(sa.exc.OperationalError):
            connection.exec_driver_sql("DELETE FROM cost_summary_state")
    assert ledger_path.read_bytes() == written


WRITERS = """
import os, sys
from datetime import timedelta
from cloudgpu.ledger.store import open_ledger
sys.path.insert(0, sys.argv[2])
from conftest import NOON, spending
children = []
for name in ("w0", "w1"):
    child = os.fork()
    if not child:
        children = []
        break
    children.append(child)
else:
    name = "w2"
ledger = open_ledger(sys.argv[1])
for number in range(15):
    entry = f"{name}-{number}"
    start = NOON + timedelta(minutes=2 * number)
    ledger.open(spending(entry, run_id=entry, opened_at=start))
    ledger.launched(entry, [f"i-{entry}"], start)
    ledger.run_started(entry, "red", "a", "ann", "", start + timedelta(minutes=1))
    ledger.close(entry, start + timedelta(minutes=10))
    ledger.run_ended(entry, "succeeded", start + timedelta(minutes=5))
assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)
"""
"""Three processes that write to one ledger, forked from one that has imported the ledger."""


def test_concurrent_processes_keep_summary_consistent(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'ledger.sqlite3'}"
    program = [sys.executable, "-c", WRITERS, url, str(Path(__file__).parent)]
    done = subprocess.run(program, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    with open_ledger(url) as ledger:
        assert is_complete(ledger)
        assert len(ledger.entries(state="closed")) == 45
        same_as_the_events(ledger, after(minutes=15))
