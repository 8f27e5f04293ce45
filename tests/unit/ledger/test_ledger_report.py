"""Costs in the ledger report, and that its rows always add up to the totals."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudgpu.ledger.billing import Charge, RunInterval, apportion, entry_usd
from cloudgpu.ledger.billing import charges as charges_of
from cloudgpu.ledger.entry import Surcharge
from cloudgpu.ledger.report import By, ReportQuery, ReportRow, report

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
EVERY_WAY = get_args(By)
DAY = "2026-11-21"


def after(**time: float) -> datetime:
    return NOON + timedelta(**time)


def rows(found) -> dict[str, Decimal]:
    return {row.key: row.usd for row in found.rows}


def test_two_nodes_for_30_minutes_cost_single_node_hour(ledger, make_spending):
    ledger.open(make_spending())
    ledger.launched("e1", ["i-1", "i-2"], NOON)
    ledger.close("e1", after(minutes=30))
    found = ledger.report(by="user", now=after(days=9))
    days = {"first_day": DAY, "last_day": DAY}
    idle = Decimal("31.212")
    assert found.rows == (ReportRow("ann", False, Decimal(1), Decimal("31.212"), 0, 0, idle_usd=idle, **days),)
    assert (found.real_usd, found.simulated_usd) == (Decimal("31.212"), Decimal(0))
    assert entry_usd(ledger.entries()[0], after(days=9)) == Decimal("31.212")


def test_billing_is_per_second_with_60_second_minimum(ledger, make_spending):
    for number, seconds in enumerate([1, 60, 60.2]):
        ledger.open(make_spending(f"e{number}", cluster=f"c{number}", nodes=1, node_hourly_usd=Decimal("3.6")))
        ledger.launched(f"e{number}", ["i"], NOON)
        ledger.close(f"e{number}", after(seconds=seconds))
    found = rows(ledger.report(by="cluster", now=NOON))
    assert found == {"c0": Decimal("0.06"), "c1": Decimal("0.06"), "c2": Decimal("0.061")}


def test_open_entry_accrues_cost_until_now(ledger, make_spending):
    ledger.open(make_spending())
    ledger.launched("e1", ["i-1", "i-2"], NOON)
    for hours in (1, 2):
        (row,) = ledger.report(by="team", now=after(hours=hours)).rows
        assert (row.usd, row.open_entries) == (Decimal("62.424") * hours, 1)


def test_unconfirmed_launch_accrues_cost_until_closed(ledger, make_spending):
    ledger.open(make_spending(nodes=3))
    (row,) = ledger.report(by="user", now=after(hours=1)).rows
    assert (row.usd, row.open_entries) == (Decimal("93.636"), 1)
    ledger.close("e1", after(hours=1))
    (row,) = ledger.report(by="user", now=after(hours=1)).rows
    assert (row.usd, row.node_hours, row.open_entries) == (0, 0, 0)


def test_partial_launch_costs_only_launched_nodes(ledger, make_spending):
    ledger.open(make_spending(nodes=8))
    ledger.launched("e1", ["i-1"], NOON)
    ledger.close("e1", after(hours=1))
    assert ledger.report(by="user", now=NOON).real_usd == Decimal("31.212")


def test_simulated_and_real_costs_are_never_added(ledger, make_spending):
    for entry_id, simulated in (("e1", True), ("e2", False)):
        ledger.open(make_spending(entry_id, simulated=simulated, nodes=1))
        ledger.launched(entry_id, ["i"], NOON)
        ledger.close(entry_id, after(hours=1 if simulated else 2))
    found = ledger.report(by="user", now=NOON)
    assert [(row.key, row.simulated, row.usd) for row in found.rows] == [
        ("ann", False, Decimal("62.424")),
        ("ann", True, Decimal("31.212")),
    ]
    assert (found.real_usd, found.simulated_usd) == (Decimal("62.424"), Decimal("31.212"))


def test_since_counts_only_cost_after_that_time(ledger, make_spending):
    ledger.open(make_spending("old", nodes=1))
    ledger.launched("old", ["i"], NOON)
    ledger.close("old", after(hours=1))
    ledger.open(make_spending("long", nodes=1, cluster="blue"))
    ledger.launched("long", ["i"], NOON)
    ledger.close("long", after(hours=4))
    found = ledger.report(by="cluster", now=after(days=1), since=after(hours=3))
    assert rows(found) == {"blue": Decimal("31.212")}
    assert found.rows[0].node_hours == 1


def test_since_can_split_minimum_billing_minute(ledger, make_spending):
    ledger.open(make_spending(nodes=1, node_hourly_usd=Decimal("3.6")))
    ledger.launched("e1", ["i"], NOON)
    ledger.close("e1", after(seconds=1))
    assert ledger.report(by="user", now=NOON, since=after(seconds=40)).real_usd == Decimal("0.02")


def test_cluster_created_for_run_is_charged_to_run(ledger, make_spending):
    ledger.open(make_spending(run_id="r1"))
    ledger.launched("e1", ["i-1", "i-2"], NOON)
    ledger.run_started("r1", "red", "quickstart", "ann", "vision", after(minutes=5))
    ledger.run_ended("r1", "succeeded", after(minutes=31))  # after its cluster is deleted
    ledger.close("e1", after(minutes=30))
    assert rows(ledger.report(by="run", now=NOON)) == {"r1": Decimal("31.212")}
    assert rows(ledger.report(by="recipe", now=NOON)) == {"quickstart": Decimal("31.212")}


def test_time_after_run_on_kept_cluster_is_idle(ledger, make_spending):
    """`train --keep`: launch at 0, the run from 5 to 20 minutes, another from 40 to 50, deleted after 60."""
    ledger.open(make_spending(nodes=1, node_hourly_usd=Decimal("3.6"), run_id="r1"))
    ledger.launched("e1", ["i-1"], NOON)
    ledger.run_started("r1", "red", "quickstart", "ann", "vision", after(minutes=5))
    ledger.run_ended("r1", "succeeded", after(minutes=20))
    (run, idle) = ledger.report(by="run", now=after(minutes=30)).rows
    assert (run.key, run.usd, run.idle_usd, run.open_entries) == ("r1", Decimal("1.2"), 0, 0)
    assert (idle.key, idle.usd, idle.idle_usd, idle.open_entries) == ("(idle) red", Decimal("0.6"), Decimal("0.6"), 1)
    ledger.run_started("r2", "red", "b", "ann", "vision", after(minutes=40))
    ledger.run_ended("r2", "succeeded", after(minutes=50))
    ledger.close("e1", after(minutes=60))
    expected = {"(idle) red": Decimal("1.8"), "r1": Decimal("1.2"), "r2": Decimal("0.6")}
    assert rows(ledger.report(by="run", now=after(days=1))) == expected
    (row,) = ledger.report(by="user", now=after(days=1)).rows
    assert (row.usd, row.idle_usd, row.runs) == (Decimal("3.6"), Decimal("1.8"), 2)


def test_minimum_time_of_short_run_is_not_idle(ledger, make_spending):
    ledger.open(make_spending(nodes=1, node_hourly_usd=Decimal("3.6"), run_id="r1"))
    ledger.launched("e1", ["i-1"], NOON)
    ledger.run_started("r1", "red", "quickstart", "ann", "vision", after(seconds=5))
    ledger.close("e1", after(seconds=20))
    ledger.run_ended("r1", "succeeded", after(seconds=21))
    assert rows(ledger.report(by="run", now=after(days=1))) == {"r1": Decimal("0.06")}


def test_costs_are_split_at_midnight_utc(ledger, make_spending):
    """Forty hours at 3.60 from Saturday noon: 12 hours, a day, and 4 hours of the next week."""
    ledger.open(make_spending(nodes=1, node_hourly_usd=Decimal("3.6"), instance_type="p3.2xlarge"))
    ledger.launched("e1", ["i-1"], NOON)
    for closed in (False, True):
        if closed:
            ledger.close("e1", after(hours=40))
        days = ledger.report(by="day", now=after(hours=40)).rows
        assert [(row.key, row.usd) for row in days] == [
            ("2026-11-21", Decimal("43.2")),
            ("2026-11-22", Decimal("86.4")),
            ("2026-11-23", Decimal("14.4")),
        ]
        assert [row.open_entries for row in days] == [0, 0, 0 if closed else 1]
        weeks = ledger.report(by="week", now=after(hours=40)).rows
        assert [(row.key, row.usd) for row in weeks] == [
            ("2026-11-16", Decimal("129.6")),
            ("2026-11-23", Decimal("14.4")),
        ]
        (month,) = ledger.report(by="month", now=after(hours=40)).rows
        assert (month.key, month.usd, month.first_day, month.last_day) == (
            "2026-11",
            Decimal(144),
            "2026-11-21",
            "2026-11-23",
        )
        latest = ledger.report(by="day", now=after(hours=40), limit=1)
        assert ([row.key for row in latest.rows], latest.omitted) == (["2026-11-23"], 2)
        assert latest.real_usd == 144
        assert ledger.report(by="user", now=after(hours=40), since=after(hours=1), until=after(hours=3)).real_usd == (
            Decimal("7.2")
        )
        gpus = ledger.query(ReportQuery("gpu", after(hours=40), gpu_of={"p3.2xlarge": "V100"}.__getitem__)).rows
        assert [(row.key, row.usd) for row in gpus] == [("V100", Decimal(144))]


def test_runs_on_shared_cluster_split_overlapping_time(ledger, make_spending):
    """One hour of one node at 3.60: r1 for 0-30, r2 for 20-40 minutes, so 10 minutes are shared and 20 idle."""
    ledger.open(make_spending(nodes=1, node_hourly_usd=Decimal("3.6"), recipe=""))
    ledger.launched("e1", ["i-1"], NOON)
    for run_id, recipe, start, end in (("r1", "a", 0, 30), ("r2", "b", 20, 40)):
        ledger.run_started(run_id, "red", recipe, "bob", "vision", after(minutes=start))
        ledger.run_ended(run_id, "succeeded", after(minutes=end))
    ledger.close("e1", after(minutes=60))
    expected = {"r1": Decimal("1.5"), "r2": Decimal("0.9"), "(idle) red": Decimal("1.2")}
    assert rows(ledger.report(by="run", now=NOON)) == expected
    assert rows(ledger.report(by="recipe", now=NOON)) == {
        "a": Decimal("1.5"),
        "b": Decimal("0.9"),
        "(idle) red": Decimal("1.2"),
    }
    (row,) = ledger.report(by="user", now=NOON).rows
    assert (row.key, row.usd, row.runs) == ("ann", Decimal("3.6"), 2)
    since = ledger.report(by="run", now=NOON, since=after(minutes=25))
    assert rows(since) == {"r1": Decimal("0.15"), "r2": Decimal("0.75"), "(idle) red": Decimal("1.2")}


def test_unfinished_run_lasts_until_its_nodes_end(ledger, make_spending):
    for number in (0, 5):
        ledger.open(make_spending(f"e{number}", nodes=1, node_hourly_usd=Decimal("3.6"), recipe=""))
        ledger.launched(f"e{number}", ["i-1"], after(hours=number))
        ledger.close(f"e{number}", after(hours=number + 1))
    ledger.run_started("r1", "red", "a", "ann", "", after(minutes=15))
    assert rows(ledger.report(by="run", now=NOON)) == {"r1": Decimal("2.7"), "(idle) red": Decimal("4.5")}
    ledger.run_started("r2", "red", "a", "ann", "", after(hours=5))
    assert rows(ledger.report(by="run", now=NOON))["r2"] == Decimal("3.6")


def test_reused_cluster_name_charges_only_matching_runs(ledger, make_spending):
    """A run is charged only while it ran, whatever else the cluster's name was used for."""
    for number in range(3):
        ledger.open(make_spending(f"e{number}", nodes=1, run_id=f"r{number}", node_hourly_usd=Decimal("3.6")))
        ledger.launched(f"e{number}", ["i-1"], after(hours=2 * number))
        ledger.close(f"e{number}", after(hours=2 * number + 1))
        ledger.run_started(f"r{number}", "red", "a", "ann", "", after(hours=2 * number))
        ledger.run_ended(f"r{number}", "succeeded", after(hours=2 * number + 1))
    assert rows(ledger.report(by="run", now=NOON)) == {f"r{number}": Decimal("3.6") for number in range(3)}


def test_missing_team_is_reported_as_none(ledger, make_spending):
    ledger.open(make_spending(team=""))
    assert [row.key for row in ledger.report(by="team", now=after(hours=1)).rows] == ["(none)"]


seconds = st.integers(0, 900)
names = st.sampled_from(["red", "blue"])


@st.composite
def charges(draw) -> Charge:
    start = draw(seconds)
    length = draw(st.none() | st.integers(60, 900))
    return Charge(
        cluster=draw(names),
        run_id=draw(st.sampled_from(["", "r0", "r1", "gone"])),
        recipe=draw(st.sampled_from(["", "a", "b"])),
        owner=draw(st.sampled_from(["ann", "bob"])),
        team=draw(st.sampled_from(["", "vision"])),
        simulated=draw(st.booleans()),
        nodes=draw(st.integers(1, 9)),
        node_hourly_usd=draw(st.sampled_from(["0", "31.212", "0.333333333", "113.9328"])),
        launched=draw(st.booleans()),
        start=after(seconds=start),
        end=None if length is None else after(seconds=start + length),
        beside_nano_usd=draw(st.sampled_from([0, 54_444_445])),
        whole_hour_nano_usd=draw(st.sampled_from([0, 45_000_000])),
        unpriced=draw(st.booleans()),
    )


@st.composite
def run_intervals(draw) -> list[RunInterval]:
    found = []
    for number in range(draw(st.integers(0, 4))):
        start = draw(seconds)
        length = draw(st.integers(0, 900))
        end = after(seconds=start + length)
        found.append(
            RunInterval(f"r{number}", draw(names), "ab"[number % 2], "bob", "", "x", after(seconds=start), end)
        )
    return found


NOW = after(seconds=2000)


@given(st.lists(charges(), max_size=5), run_intervals(), st.none() | st.integers(-10, 2000))
@settings(max_examples=150, deadline=None)
def test_report_rows_add_up_to_totals_for_every_grouping(every, runs, since):
    moment = None if since is None else after(seconds=since)
    found = [report(every, runs, ReportQuery(by, NOW, since=moment)) for by in EVERY_WAY]
    for one in found:
        for simulated, total in ((False, one.real_usd), (True, one.simulated_usd)):
            assert sum((row.usd for row in one.rows if row.simulated is simulated), Decimal(0)) == total
        assert all(row.usd >= 0 and row.node_hours >= 0 for row in one.rows)
    if moment is None:
        assert len({(one.real_usd, one.simulated_usd) for one in found}) == 1


@given(st.lists(charges(), max_size=5), run_intervals(), st.lists(st.integers(-10, 2000), max_size=3))
@settings(max_examples=100, deadline=None)
def test_successive_periods_add_up_to_whole_report(every, runs, cuts):
    moments = [None, *(after(seconds=cut) for cut in sorted(set(cuts))), None]
    for by in EVERY_WAY:
        whole = report(every, runs, ReportQuery(by, NOW))
        parts = [report(every, runs, ReportQuery(by, NOW, since, until)) for since, until in pairwise(moments)]
        expected = Counter({(row.key, row.simulated): row.usd for row in whole.rows})
        found: Counter[tuple[str, bool]] = Counter()
        for part in parts:
            found.update({(row.key, row.simulated): row.usd for row in part.rows})
        # Runs that share a cluster at a cut may exchange micro-dollars, because each slice is split among them.
        tolerance = Decimal("0.00001") if by in ("run", "recipe") else 0
        assert all(abs(found[key] - expected[key]) <= tolerance for key in found | expected)
        assert sum(part.real_usd for part in parts) == whole.real_usd


def own(charge: Charge, run: RunInterval) -> bool:
    until = charge.start + timedelta(seconds=charge.seconds(NOW))
    overlaps = run.started_at < until and run.ended_at > charge.start
    return (run.run_id, run.cluster) == (charge.run_id, charge.cluster) and overlaps


@given(st.lists(charges(), max_size=3), run_intervals())
@settings(max_examples=60, deadline=None)
def test_attribution_equals_second_by_second_count(every, runs):
    expected: Counter[tuple[str, bool]] = Counter()
    for one in every:
        for second in range(0 if one.free else one.seconds(NOW)):
            moment = one.start + timedelta(seconds=second)
            active = [run for run in runs if run.cluster == one.cluster and run.started_at <= moment < run.ended_at]
            own_end = next((run.ended_at for run in runs if own(one, run)), None)
            kept = own_end is not None and own_end <= moment and (one.end is None or own_end < one.end)
            keys = [run.run_id for run in active] or [f"(idle) {one.cluster}" if kept or not one.run_id else one.run_id]
            for key in keys:
                expected[key, one.simulated] += Fraction(one.nodes, len(keys))
    found = {(row.key, row.simulated): row.node_hours for row in report(every, runs, ReportQuery("run", NOW)).rows}
    for key, node_seconds in expected.items():
        assert abs(Fraction(found[key]) - node_seconds / 3600) < Fraction(1, 100_000)
    assert all(expected[key] or not hours for key, hours in found.items())


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**9), min_size=1, max_size=9).filter(any))
def test_apportioned_parts_add_up_and_follow_weights(total, weights):
    parts = apportion(total, weights)
    assert sum(parts) == total
    assert all(
        abs(part - Fraction(total * weight, sum(weights))) < 1 for part, weight in zip(parts, weights, strict=True)
    )


def test_charges_of_entry_match_ledger_report(ledger, make_spending):
    ledger.open(make_spending(run_id="r1"))
    ledger.launched("e1", ["i-1"], NOON)
    by_entry = report(charges_of(ledger.entries()[0]), [], ReportQuery("run", after(hours=1)))
    assert by_entry == ledger.report(by="run", now=after(hours=1))


@pytest.mark.parametrize("by", EVERY_WAY)
def test_empty_ledger_gives_empty_report(ledger, by):
    found = ledger.report(by=by, now=NOON)
    assert (found.rows, found.real_usd, found.simulated_usd) == ((), 0, 0)


BESIDE = (
    Surcharge("addresses", 2, Decimal("0.01")),
    Surcharge("disks", 2, Decimal("0.0444445")),
    Surcharge("gateway", 1, Decimal("0.045"), whole_hours=True),
)


def test_surcharges_are_billed_once_per_cluster(ledger, make_spending):
    ledger.open(make_spending(nodes=2, node_hourly_usd=Decimal(1), beside=BESIDE))
    ledger.launched("e1", ["i-1", "i-2"], NOON)
    ledger.close("e1", after(minutes=90))
    found = ledger.report(by="cluster", now=after(hours=9))
    # Nodes 3, disks and addresses 1.5 x 0.0544445, and the gateway 2 x 0.045: its half hour counts as a whole one.
    assert found.real_usd == Decimal("3.171667")
    assert found.real_usd == entry_usd(ledger.entries()[0], after(hours=9))
    assert found.rows[0].node_hours == 3


def test_entry_without_launch_has_no_surcharges(ledger, make_spending):
    ledger.open(make_spending(beside=BESIDE))
    ledger.close("e1", after(hours=1))
    assert ledger.report(by="cluster", now=after(hours=2)).real_usd == 0


def test_part_without_price_is_reported_as_unpriced(ledger, make_spending):
    ledger.open(make_spending("e1", nodes=1, node_hourly_usd=Decimal("3.6"), beside=(Surcharge("disks", 1, None),)))
    ledger.open(make_spending("e2", nodes=1, node_hourly_usd=Decimal("3.6"), beside=BESIDE[:1]))
    ledger.launched("e1", ["i-1"], NOON)
    (row,) = ledger.report(by="cluster", now=after(hours=1)).rows
    assert row.unpriced == 1
    ledger.open(make_spending("e3", cluster="free", beside=(Surcharge("disks", 1, None),)))
    ledger.close("e3", NOON)
    free = next(row for row in ledger.report(by="cluster", now=after(hours=1)).rows if row.key == "free")
    assert (free.usd, free.unpriced) == (0, 0)
