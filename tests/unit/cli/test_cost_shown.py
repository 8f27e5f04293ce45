"""The cost report as a table at several widths, as CSV and as JSON, and the dates that limit it."""

import csv
import io
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from cloudgpu.cli.commands.cost import read_period, report_csv, report_json, report_lines
from cloudgpu.cli.main import main
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.errors import UsageError
from cloudgpu.ledger.report import CostReport, ReportRow

NOW = datetime(2026, 11, 21, 3, 30, tzinfo=UTC)
DAY = "2026-11-21"
ROWS = (
    ReportRow("ann", False, Decimal("2.5"), Decimal("1234.5"), 1, 3, 0, 0, Decimal("12.5"), "2026-11-02", DAY),
    ReportRow("bob\x1b", True, Decimal("0.0333"), Decimal("0.01753"), 0, 1, 0, 0, Decimal(0), DAY, DAY),
)
REPORT = CostReport("user", None, NOW, ROWS, Decimal("1234.5"), Decimal("0.01753"))


def shown(report: CostReport, width: int | None, capsys: pytest.CaptureFixture[str]) -> list[str]:
    Screen(colour=False).lines(report_lines(report, width))
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", [None, 160, 120])
def test_wide_terminals_and_pipes_show_every_column_and_bar(capsys, width):
    assert shown(REPORT, width, capsys) == [
        "user  from        to          node hours       cost    idle",
        "ann   2026-11-02  2026-11-21       2.500  $1,234.50  $12.50  still accruing  ########################",
        "bob\ufffd  2026-11-21                   0.033    $0.0175          simulated       #",
        "",
        "real $1,234.50, simulated $0.0175",
    ]


def test_narrow_terminals_shorten_bars_and_hide_dates(capsys):
    assert shown(REPORT, 80, capsys)[:4] == [
        "user  from        to           node       cost    idle",
        "                              hours",
        "ann   2026-11-02  2026-11-21  2.500  $1,234.50  $12.50  still accruing  ########",
        "bob\ufffd  2026-11-21              0.033    $0.0175          simulated       #",
    ]
    assert shown(REPORT, 50, capsys)[:6] == [
        "user   node       cost    idle",
        "      hours",
        "ann   2.500  $1,234.50  $12.50  still accruing",
        "bob\ufffd  0.033    $0.0175          simulated",
        "hidden columns: from, to; to show all: a wider",
        "  terminal, a pipe or --json",
    ]


@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("by", ["run", "day"])
def test_no_line_is_wider_than_terminal(capsys, by, width):
    rows = tuple(replace(row, key=f"imagenet-resnet50-{place}x7k2") for place, row in enumerate(ROWS))
    assert all(len(line) <= width for line in shown(replace(REPORT, by=by, rows=rows), width, capsys))


def test_periods_show_neither_dates_nor_cheaper_rows(capsys):
    days = (replace(ROWS[0], key="2026-11-20", usd=Decimal(5)), replace(ROWS[0], key=DAY, usd=Decimal(10)))
    since = datetime(2026, 11, 20, tzinfo=UTC)
    report = replace(REPORT, by="day", rows=days, omitted=3, since=since, until=NOW)
    assert shown(report, 100, capsys) == [
        "day         node hours    cost    idle",
        "2026-11-20       2.500   $5.00  $12.50  still accruing  ############",
        "2026-11-21       2.500  $10.00  $12.50  still accruing  ########################",
        "3 earlier rows not shown; to show all rows: --limit 0",
        "",
        "real $1,234.50, simulated $0.0175 since 2026-11-20 00:00 UTC until 2026-11-21 03:30 UTC",
    ]


def test_omitted_rows_and_empty_reports_are_explained(capsys):
    assert shown(replace(REPORT, omitted=99_900), None, capsys)[3:] == [
        "99,900 cheaper rows not shown; to show all rows: --limit 0",
        "",
        "real $1,234.50, simulated $0.0175",
    ]
    nothing = replace(REPORT, rows=(), since=NOW)
    assert report_lines(nothing) == ["nothing was spent since 2026-11-21 03:30 UTC"]


def test_cost_report_has_documented_json():
    document = report_json(replace(REPORT, until=NOW))
    assert {name: document[name] for name in document if name != "rows"} == {
        "by": "user",
        "since": None,
        "until": "2026-11-21T03:30:00Z",
        "omitted_rows": 0,
        "real_usd": "1234.5",
        "simulated_usd": "0.01753",
    }
    assert document["rows"][0] == {
        "user": "ann",
        "simulated": False,
        "node_hours": "2.5",
        "usd": "1234.5",
        "idle_usd": "12.5",
        "open_entries": 1,
        "runs": 3,
        "unpriced_entries": 0,
        "estimated_entries": 0,
        "first_day": "2026-11-02",
        "last_day": DAY,
    }


def test_csv_has_fields_of_json_rows():
    rows = list(csv.DictReader(io.StringIO(report_csv(REPORT))))
    assert list(rows[0]) == list(report_json(REPORT)["rows"][0])
    assert [(row["user"], row["usd"], row["simulated"]) for row in rows] == [
        ("ann", "1234.5", "false"),
        ("bob\x1b", "0.01753", "true"),
    ]
    assert report_csv(replace(REPORT, rows=())).startswith("user,simulated,node_hours,usd,")


def test_end_date_includes_its_day():
    since, until = read_period("2026-11-01", "2026-11-30", NOW)
    assert (since, until) == (datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC))
    assert read_period(None, "2026-11-30T12:00Z", NOW) == (None, datetime(2026, 11, 30, 12, tzinfo=UTC))
    assert read_period("2d", "1d", NOW) == (
        datetime(2026, 11, 19, 3, 30, tzinfo=UTC),
        datetime(2026, 11, 20, 3, 30, tzinfo=UTC),
    )
    assert read_period(None, None, NOW) == (None, None)


@pytest.mark.parametrize(
    ("since", "until", "message"),
    [
        ("1d", "2d", "--since 1d is not before --until 2d"),
        ("2026-11-02", "2026-11-01", "--since 2026-11-02 is not before --until 2026-11-01"),
        (None, "soon", "--until soon: expected a date"),
        ("1999-01-01", None, "--since 1999-01-01: expected a date"),
    ],
)
def test_impossible_periods_are_rejected(since, until, message):
    with pytest.raises(UsageError, match=message):
        read_period(since, until, NOW)


def test_hint_of_a_malformed_date_shows_the_accepted_forms():
    """Regression: `--since monday` got the hint to use a time after 1999."""
    with pytest.raises(UsageError) as caught:
        read_period("monday", None, NOW)
    assert caught.value.hint == (
        "an age needs a unit, and a date a year from 2000 on: --since 7d, or --since 2026-11-01"
    )


def test_csv_and_json_exclude_each_other(home, capsys):
    assert main(["cost", "--csv", "--json"]) == 2
    assert "--csv and --json are mutually exclusive" in capsys.readouterr().err


def test_csv_of_empty_ledger_is_its_header(home, capsys):
    assert main(["cost", "--by", "gpu", "--csv"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "gpu,simulated,node_hours,usd,idle_usd,open_entries,runs,unpriced_entries,estimated_entries,first_day,last_day"
    ]
