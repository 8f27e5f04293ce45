"""Measure `cloudgpu cost` on ledgers of 10,000 and 100,000 closed entries with disks, addresses and runs.

Aims: `cloudgpu cost` <= 0.4 s; the report alone <= 0.15 s. For comparison, prints how long sqlite3 takes to read the
same rows, how long the events take without the summary, and what the summary adds to closing an entry.

Usage: cost.py [COUNT ...]
"""

import sqlite3
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import sqlalchemy as sa
from measure import CLOUDGPU, run, show, show_command

from cloudgpu.cli.commands.cost import ROWS_SHOWN
from cloudgpu.ledger import database, schema, summary
from cloudgpu.ledger.entry import Spending, Surcharge, to_text
from cloudgpu.ledger.report import By, ReportQuery
from cloudgpu.ledger.store import Ledger, open_ledger
from cloudgpu.ledger.summary_queries import sqlite_report

START = datetime(2026, 1, 1, tzinfo=UTC)
TIMES = 5


def spending(number: int) -> Spending:
    at = START + timedelta(minutes=10 * number)
    return Spending(
        entry_id=f"token-{number}/us-east-1c/p3dn.24xlarge/spot",
        cluster="quickstart",
        run_id=f"run-{number}",
        recipe=f"recipe-{number % 20}",
        owner=f"user-{number % 10}",
        team=f"team-{number % 3}",
        target="aws",
        simulated=number % 2 == 0,
        account="123456789012",
        endpoint="",
        region="us-east-1",
        zone="us-east-1c",
        instance_type="p3dn.24xlarge",
        market="spot",
        nodes=2,
        node_hourly_usd=Decimal("8.29") + number % 40,
        opened_at=at,
        expires_at=at + timedelta(hours=8),
        beside=(Surcharge("disks", 2, Decimal("0.044444445")), Surcharge("addresses", 2, Decimal("0.01"))),
    )


def fill(ledger: Ledger, count: int) -> None:
    """Write all events in one transaction, because each separate transaction would wait for the disk."""
    every = [spending(number) for number in range(count)]
    purchases = [{"entry_id": purchase.entry_id, "attempt": 1} for purchase in every]

    def at(number: int, **later: float) -> str:
        return to_text(every[number].opened_at + timedelta(**later))

    events: dict[sa.Table, list[dict[str, Any]]] = {
        schema.opened: [schema.opened_row(purchase, 1) for purchase in every],
        schema.beside: [row for purchase in every for row in schema.surcharge_rows(purchase, 1)],
        schema.launched: [
            purchase | {"instance_id": f"i-{number:08x}{node}", "position": node, "launched_at": at(number, seconds=20)}
            for number, purchase in enumerate(purchases)
            for node in range(2)
        ],
        schema.closed: [purchase | {"closed_at": at(number, minutes=9)} for number, purchase in enumerate(purchases)],
        schema.run_started: [
            {
                "run_id": purchase.run_id,
                "cluster": purchase.cluster,
                "recipe": purchase.recipe,
                "owner": purchase.owner,
                "team": purchase.team,
            }
            | {"started_at": at(number, minutes=1)}
            for number, purchase in enumerate(every)
        ],
        schema.run_ended: [
            {"run_id": purchase.run_id, "state": "succeeded", "ended_at": at(number, minutes=9, seconds=5)}
            for number, purchase in enumerate(every)
        ],
    }
    with database.write_transaction(ledger.engine) as connection:
        for table, written in events.items():
            connection.execute(sa.insert(table), written)
        summary.rebuild(connection)


def report_s(url: str, by: By, since: datetime | None = None) -> float:
    times = []
    for _ in range(TIMES):
        started = time.perf_counter()
        query = ReportQuery(by, START + timedelta(days=3650), since, limit=ROWS_SHOWN, gpu_of=str.upper)
        if sqlite_report(url, query) is None:
            sys.exit("the ledger's summary is not complete")
        times.append(time.perf_counter() - started)
    return min(times)


def recomputed_s(ledger: Ledger) -> float:
    started = time.perf_counter()
    ledger.recomputed_report(ReportQuery("user", START + timedelta(days=3650)))
    return time.perf_counter() - started


def close_s(ledger: Ledger, number: int) -> float:
    """Measure the transaction that closes one more entry, on the cluster that all entries share."""
    entry = spending(number)
    ledger.open(entry)
    ledger.launched(entry.entry_id, ["i-1", "i-2"], entry.opened_at)
    started = time.perf_counter()
    ledger.close(entry.entry_id, entry.opened_at + timedelta(minutes=9))
    return time.perf_counter() - started


def bare_s(path: Path) -> float:
    with sqlite3.connect(path) as connection:
        started = time.perf_counter()
        for table in schema.EVENTS:
            connection.execute(f"SELECT * FROM {table.name}").fetchall()
        return time.perf_counter() - started


def measure(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite3"
        url = f"sqlite:///{path}"
        with open_ledger(url) as ledger:
            fill(ledger, count)
            bare = bare_s(path)
            print(f"     {count} entries; sqlite3 reads their rows in {bare:.3f} s,")
            print(f"     the report by user from the events takes {recomputed_s(ledger):.3f} s,")
            closing = min(close_s(ledger, count + number) for number in range(TIMES))
            print(f"     closing one more entry takes {closing:.3f} s")
        half = START + timedelta(minutes=5 * count + 5)
        for by in get_args(By):
            show(f"report by {by}", report_s(url, by), 0.15, "s")
        show("report by user since the middle of an entry", report_s(url, "user", half), 0.15, "s")
        for by in get_args(By):
            cost = run([CLOUDGPU, "cost", "--by", by], env={"CLOUDGPU_HOME": folder})
            show_command(f"cloudgpu cost --by {by}, {count} entries, wall", cost, 0.4)


def main() -> None:
    for count in [int(argument) for argument in sys.argv[1:]] or [10_000, 100_000]:
        measure(count)


if __name__ == "__main__":
    main()
