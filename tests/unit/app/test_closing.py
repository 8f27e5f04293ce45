"""Ledger rows end when the cloud says that their resources ended; where it does not say, at an upper bound."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from cloudgpu.app.books import Books
from cloudgpu.app.closing import note_ends
from cloudgpu.app.lost_rows import missing_nodes
from cloudgpu.app.overview import recorded
from cloudgpu.app.remains import grouped
from cloudgpu.app.sweeping import Sweeping
from cloudgpu.aws.lifetimes import Lifetime
from cloudgpu.catalog import load
from cloudgpu.errors import CloudError
from cloudgpu.plan.costs import CENT, CostItem

HOURLY = 2 * Decimal("31.212")
HOUR_S = 3600


@pytest.fixture
def standing(bench, make):
    return bench.provisioning.up(make.plan(make.candidate()), "demo").record


def ended(bench, after_s=None, *, listed=True):
    """The nodes end themselves, at a moment that the cloud tells or not."""
    start = bench.clock.now()
    for node in bench.cloud.alive:
        bench.cloud.alive[node] = "terminated"
        if after_s is not None:
            bench.cloud.ends[node] = start + timedelta(seconds=after_s)
        elif not listed:
            bench.cloud.ends[node] = None


def closed(bench):
    (entry,) = bench.ledger.entries()
    assert entry.state == "closed"
    return entry


def test_the_bill_stops_when_the_cloud_says_that_the_last_node_ended(bench, standing):
    ended(bench, 3 * HOUR_S)
    bench.cloud.ends["i-us-east-1c-0"] = bench.clock.now() + timedelta(hours=2)
    bench.clock.sleep(48 * HOUR_S)
    found = bench.teardown.down("demo", "us-east-1")
    assert (found.usd, found.estimated) == (HOURLY * 3, False)
    assert closed(bench).closed_at == standing.created_at + timedelta(hours=3)


@pytest.mark.parametrize("listed", [True, False])
def test_without_a_time_the_bill_stops_when_the_end_was_confirmed_and_is_marked(bench, standing, listed):
    assert standing.expires_at - standing.created_at == timedelta(hours=1)
    ended(bench, listed=listed)
    bench.clock.sleep(5 * HOUR_S)
    found = bench.teardown.down("demo", "us-east-1")
    assert (found.usd, found.estimated) == (HOURLY * 5, True)
    assert found.as_json()["cost"]["estimated"] is True
    (row,) = bench.ledger.report(by="cluster", now=bench.clock.now()).rows
    assert (row.usd, row.estimated) == (HOURLY * 5, 1)


def test_one_node_without_a_time_makes_the_whole_an_upper_bound(bench, standing):
    ended(bench, HOUR_S)
    bench.cloud.ends["i-us-east-1c-1"] = None
    bench.clock.sleep(2 * HOUR_S)
    found = bench.teardown.down("demo", "us-east-1")
    assert (found.usd, found.estimated) == (HOURLY * 2, True)


def test_a_cloud_that_cannot_be_asked_for_times_leaves_the_bound(bench, standing, monkeypatch):
    def silent(region, ids):
        raise CloudError("cannot reach ec2.us-east-1")

    bench.clock.sleep(HOUR_S)
    monkeypatch.setattr(bench.cloud, "lifetimes", silent)
    found = bench.teardown.down("demo", "us-east-1")
    assert (found.usd, found.estimated) == (HOURLY, True)


@pytest.mark.parametrize("hours", [-1, 99])
def test_a_time_before_the_launch_or_in_the_future_is_not_believed(bench, standing, hours):
    ended(bench, hours * HOUR_S)
    bench.clock.sleep(2 * HOUR_S)
    bench.teardown.down("demo", "us-east-1")
    entry = closed(bench)
    assert entry.launched_at <= entry.closed_at <= bench.clock.now()


def test_status_and_cost_agree_while_nodes_outlive_their_expiry(bench, standing):
    bench.clock.sleep(4 * HOUR_S)
    now = bench.clock.now()
    (one,) = recorded(bench.records, now, bench.ledger)
    (row,) = bench.ledger.report(by="cluster", now=now).rows
    assert one.state == "expired"
    assert row.usd == HOURLY * 4
    assert one.spent_usd == row.usd.quantize(CENT)
    # The record alone, for a ledger that cannot be read, says the same.
    (alone,) = recorded(bench.records, now)
    assert alone.spent_usd == row.usd.quantize(CENT)


def test_a_look_at_nodes_that_ended_narrows_the_bound(bench, standing):
    ended(bench, listed=False)
    bench.clock.sleep(2 * HOUR_S)
    note_ends(bench.desk, bench.ledger.entries())
    bench.clock.sleep(46 * HOUR_S)
    (one,) = recorded(bench.records, bench.clock.now(), bench.ledger)
    assert one.spent_usd == (HOURLY * 2).quantize(CENT)
    found = bench.teardown.down("demo", "us-east-1")
    assert (found.usd, found.estimated) == (HOURLY * 2, True)


def test_nodes_that_are_not_listed_yet_have_not_ended(bench, standing):
    bench.cloud.ends = dict.fromkeys(bench.cloud.alive)
    bench.clock.sleep(60)
    note_ends(bench.desk, bench.ledger.entries())
    assert bench.ledger.entries()[0].parts == {}


@pytest.fixture
def behind_a_gateway(bench, make):
    beside = (
        CostItem("addresses", 2, "Elastic IPs", Decimal("0.01"), None, ""),
        CostItem("gateway", 1, "NAT gateway", Decimal("0.045"), None, "", whole_hours=True),
    )
    candidate = replace(make.candidate(), beside=beside)
    bench.cloud.network = [Lifetime("nat-gateway", "nat-1", True, None), Lifetime("elastic-ip", "e-1", True, None)]
    return bench.provisioning.up(make.plan(candidate), "demo").record


def test_gateway_and_addresses_cost_on_after_the_nodes_ended(bench, behind_a_gateway):
    ended(bench, HOUR_S)
    bench.clock.sleep(10 * HOUR_S)
    found = bench.teardown.down("demo", "us-east-1")
    assert found.usd == HOURLY + 10 * Decimal("0.055")
    assert not found.estimated
    assert closed(bench).parts["nodes"].at == behind_a_gateway.created_at + timedelta(hours=1)


def test_a_gateway_that_was_deleted_elsewhere_ends_at_its_own_time_and_addresses_at_a_bound(bench, behind_a_gateway):
    ended(bench, HOUR_S)
    at = behind_a_gateway.created_at + timedelta(hours=3)
    bench.cloud.network = [Lifetime("nat-gateway", "nat-1", False, None, at)]
    bench.clock.sleep(5 * HOUR_S)
    found = bench.teardown.down("demo", "us-east-1")
    assert found.usd == HOURLY + 3 * Decimal("0.045") + 5 * Decimal("0.01")
    parts = closed(bench).parts
    assert (parts["gateway"].at, parts["gateway"].estimated, parts["elastic-ips"].estimated) == (at, False, True)


def test_a_gateway_that_aws_has_forgotten_ends_at_a_bound(bench, behind_a_gateway):
    ended(bench, HOUR_S)
    bench.cloud.network = []
    bench.clock.sleep(5 * HOUR_S)
    found = bench.teardown.down("demo", "us-east-1")
    assert (found.usd, found.estimated) == (HOURLY + 5 * Decimal("0.055"), True)


def test_down_without_a_record_and_sweep_close_by_the_same_times(bench, make, standing):
    ended(bench, 2 * HOUR_S)
    bench.clock.sleep(9 * HOUR_S)
    bench.records.forget_cluster("demo")
    bench.cloud.strays = [make.thing("volume", "vol-1", "us-east-1", {"cloudgpu:owner": "ann"})]
    found = bench.teardown.down("demo", "us-east-1")
    assert found.usd == HOURLY * 2
    assert closed(bench).closed_at == standing.created_at + timedelta(hours=2)


def test_sweep_of_what_no_record_knows_closes_by_the_clouds_times(bench, make, standing):
    ended(bench, 2 * HOUR_S)
    bench.clock.sleep(9 * HOUR_S)
    bench.records.forget_cluster("demo")
    tags = {"cloudgpu:cluster": "demo", "cloudgpu:token": standing.token, "cloudgpu:owner": "ann"}
    thing = Leftover("volume", "vol-1", "us-east-1", tags)
    bench.cloud.strays = [thing]
    swept = Sweeping(bench.desk, None).end(grouped([thing], load(), bench.clock.now()), "us-east-1")
    assert swept.failed == ()
    assert closed(bench).closed_at == standing.created_at + timedelta(hours=2)
    assert Books(bench.desk).usd(bench.ledger.entries(), bench.clock.now()) == HOURLY * 2


class Leftover:
    """A tagged thing with what a sweep prices it by."""

    def __init__(self, kind, thing_id, region, tags):
        self.kind, self.id, self.region, self.tags = kind, thing_id, region, tags
        self.state, self.since, self.instance_type, self.market = "", None, "", ""
        self.volume_type, self.size_gib = "gp3", 10


def test_a_host_that_was_never_leased_has_a_row_and_is_not_missing(bench, standing):
    (entry,) = bench.ledger.entries()
    asked = replace(entry, instance_ids=(), spending=replace(entry.spending, zone="red"))
    hosts = replace(standing, target="ssh", state="ending", instance_ids=("red@demo", "blue@demo"))
    assert missing_nodes(hosts, [asked]) == ("blue@demo",)
    assert missing_nodes(replace(hosts, state="making"), []) == ()
