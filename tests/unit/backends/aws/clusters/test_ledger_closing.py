"""Ledger rows close when the cloud says that their resources ended, or else at an upper bound."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cloudgpu.app.cluster_status import list_cluster_statuses
from cloudgpu.aws.ec2.billing_times import Lifetime
from cloudgpu.aws.session.session import ServerTime
from cloudgpu.backends.aws.clusters.ledger_rows import record_node_ends
from cloudgpu.backends.aws.sweep import AccountSweep
from cloudgpu.backends.billing.cluster_billing import ClusterBilling, missing_nodes
from cloudgpu.backends.sweep import SweepDecision, SweepPlan, group_by_cluster
from cloudgpu.catalog import load
from cloudgpu.errors import CapacityError, CloudError, NoCapacityError
from cloudgpu.plan.costs import CENT, CostItem
from tests.cluster_records import changed
from tests.tagged_resource import Resource

HOURLY = 2 * Decimal("31.212")
HOUR_S = 3600


@pytest.fixture
def record(workspace, make):
    return workspace.provisioning.create(make.plan(make.candidate()), "demo").record


def ended(workspace, after_s=None, *, listed=True):
    """Terminate the nodes, at a time that the cloud reports or does not report."""
    start = workspace.clock.now()
    for node in workspace.cloud.alive:
        workspace.cloud.alive[node] = "terminated"
        if after_s is not None:
            workspace.cloud.ends[node] = start + timedelta(seconds=after_s)
        elif not listed:
            workspace.cloud.ends[node] = None


def closed(workspace):
    (entry,) = workspace.ledger.entries()
    assert entry.state == "closed"
    return entry


def test_billing_stops_when_the_last_node_terminated(workspace, record):
    ended(workspace, 3 * HOUR_S)
    workspace.cloud.ends["i-us-east-1c-0"] = workspace.clock.now() + timedelta(hours=2)
    workspace.clock.sleep(48 * HOUR_S)
    found = workspace.teardown.down("demo", "us-east-1")
    assert (found.usd, found.estimated) == (HOURLY * 3, False)
    assert closed(workspace).closed_at == record.identity.created_at + timedelta(hours=3)


@pytest.mark.parametrize("listed", [True, False])
def test_billing_without_end_time_stops_at_confirmation_as_estimate(workspace, record, listed):
    assert record.lifecycle.expires_at - record.identity.created_at == timedelta(hours=1)
    ended(workspace, listed=listed)
    workspace.clock.sleep(5 * HOUR_S)
    found = workspace.teardown.down("demo", "us-east-1")
    assert (found.usd, found.estimated) == (HOURLY * 5, True)
    assert found.as_json()["cost"]["estimated"] is True
    (row,) = workspace.ledger.report(by="cluster", now=workspace.clock.now()).rows
    assert (row.usd, row.estimated) == (HOURLY * 5, 1)


def test_node_without_end_time_makes_the_cost_an_upper_bound(workspace, record):
    ended(workspace, HOUR_S)
    workspace.cloud.ends["i-us-east-1c-1"] = None
    workspace.clock.sleep(2 * HOUR_S)
    found = workspace.teardown.down("demo", "us-east-1")
    assert (found.usd, found.estimated) == (HOURLY * 2, True)


def test_failed_lifetime_query_leaves_an_upper_bound(workspace, record, monkeypatch):
    def silent(region, ids):
        raise CloudError("cannot reach ec2.us-east-1")

    workspace.clock.sleep(HOUR_S)
    monkeypatch.setattr(workspace.cloud, "lifetimes", silent)
    found = workspace.teardown.down("demo", "us-east-1")
    assert (found.usd, found.estimated) == (HOURLY, True)


@pytest.mark.parametrize("hours", [-1, 99])
def test_implausible_end_time_is_ignored(workspace, record, hours):
    ended(workspace, hours * HOUR_S)
    workspace.clock.sleep(2 * HOUR_S)
    workspace.teardown.down("demo", "us-east-1")
    entry = closed(workspace)
    assert entry.launched_at <= entry.closed_at <= workspace.clock.now()


def test_status_and_ledger_agree_after_expiry(workspace, record):
    workspace.clock.sleep(4 * HOUR_S)
    now = workspace.clock.now()
    (status,) = list_cluster_statuses(workspace.records, now, workspace.ledger)
    (row,) = workspace.ledger.report(by="cluster", now=now).rows
    assert status.state == "expired"
    assert row.usd == HOURLY * 4
    assert status.spent_usd == row.usd.quantize(CENT)
    # The record alone, used if the ledger is unreadable, gives the same cost.
    (alone,) = list_cluster_statuses(workspace.records, now)
    assert alone.spent_usd == row.usd.quantize(CENT)


def test_status_query_of_ended_nodes_tightens_the_upper_bound(workspace, record):
    ended(workspace, listed=False)
    workspace.clock.sleep(2 * HOUR_S)
    record_node_ends(workspace.context, workspace.ledger.entries())
    workspace.clock.sleep(46 * HOUR_S)
    (status,) = list_cluster_statuses(workspace.records, workspace.clock.now(), workspace.ledger)
    assert status.spent_usd == (HOURLY * 2).quantize(CENT)
    found = workspace.teardown.down("demo", "us-east-1")
    assert (found.usd, found.estimated) == (HOURLY * 2, True)


def test_nodes_not_yet_listed_are_not_recorded_as_ended(workspace, record):
    workspace.cloud.ends = dict.fromkeys(workspace.cloud.alive)
    workspace.clock.sleep(60)
    record_node_ends(workspace.context, workspace.ledger.entries())
    assert workspace.ledger.entries()[0].parts == {}


@pytest.fixture
def behind_a_gateway(workspace, make):
    beside = (
        CostItem("addresses", 2, "Elastic IPs", Decimal("0.01"), None, ""),
        CostItem("gateway", 1, "NAT gateway", Decimal("0.045"), None, "", whole_hours=True),
    )
    candidate = replace(make.candidate(), beside=beside)
    workspace.cloud.network = [Lifetime("nat-gateway", "nat-1", True, None), Lifetime("elastic-ip", "e-1", True, None)]
    return workspace.provisioning.create(make.plan(candidate), "demo").record


def test_gateway_and_addresses_are_billed_after_nodes_end(workspace, behind_a_gateway):
    ended(workspace, HOUR_S)
    workspace.clock.sleep(10 * HOUR_S)
    found = workspace.teardown.down("demo", "us-east-1")
    assert found.usd == HOURLY + 10 * Decimal("0.055")
    assert not found.estimated
    assert closed(workspace).parts["nodes"].at == behind_a_gateway.identity.created_at + timedelta(hours=1)


def test_gateway_deleted_elsewhere_is_billed_until_its_deletion_time(workspace, behind_a_gateway):
    ended(workspace, HOUR_S)
    at = behind_a_gateway.identity.created_at + timedelta(hours=3)
    workspace.cloud.network = [Lifetime("nat-gateway", "nat-1", False, None, at)]
    workspace.clock.sleep(5 * HOUR_S)
    found = workspace.teardown.down("demo", "us-east-1")
    assert found.usd == HOURLY + 3 * Decimal("0.045") + 5 * Decimal("0.01")
    parts = closed(workspace).parts
    assert (parts["gateway"].at, parts["gateway"].estimated, parts["elastic-ips"].estimated) == (at, False, True)


def test_gateway_unknown_to_aws_ends_at_an_upper_bound(workspace, behind_a_gateway):
    ended(workspace, HOUR_S)
    workspace.cloud.network = []
    workspace.clock.sleep(5 * HOUR_S)
    found = workspace.teardown.down("demo", "us-east-1")
    assert (found.usd, found.estimated) == (HOURLY + 5 * Decimal("0.055"), True)


def test_down_without_record_closes_rows_by_node_end_times(workspace, make, record):
    ended(workspace, 2 * HOUR_S)
    workspace.clock.sleep(9 * HOUR_S)
    workspace.records.forget_cluster("demo")
    workspace.cloud.orphans = [make.thing("volume", "vol-1", "us-east-1", {"cloudgpu:owner": "ann"})]
    found = workspace.teardown.down("demo", "us-east-1")
    assert found.usd == HOURLY * 2
    assert closed(workspace).closed_at == record.identity.created_at + timedelta(hours=2)


def test_sweep_without_record_closes_rows_by_node_end_times(workspace, make, record):
    ended(workspace, 2 * HOUR_S)
    workspace.clock.sleep(9 * HOUR_S)
    workspace.records.forget_cluster("demo")
    tags = {"cloudgpu:cluster": "demo", "cloudgpu:token": record.identity.token, "cloudgpu:owner": "ann"}
    thing = Resource("volume", "vol-1", "us-east-1", tags, volume_type="gp3", size_gib=10)
    workspace.cloud.orphans = [thing]
    (cluster,) = group_by_cluster([thing], load(), workspace.clock.now())
    plan = SweepPlan((), (), ((cluster, SweepDecision(may_delete=True, why="yours")),))
    swept = AccountSweep(workspace.context, None, "us-east-1").delete_clusters(plan)
    assert swept.failed == ()
    assert closed(workspace).closed_at == record.identity.created_at + timedelta(hours=2)
    assert ClusterBilling(workspace.context).usd(workspace.ledger.entries(), workspace.clock.now()) == HOURLY * 2


def test_host_that_was_never_leased_is_not_missing(workspace, record):
    (entry,) = workspace.ledger.entries()
    leased = replace(entry, instance_ids=(), spending=replace(entry.spending, zone="red"))
    hosts = changed(record, target="ssh", state="ending", instance_ids=("red@demo", "blue@demo"))
    assert missing_nodes(hosts, [leased]) == ("blue@demo",)
    assert missing_nodes(hosts.in_state("making"), []) == ()


class WrongClock:
    """This machine's clock, which differs from the cloud's."""

    def __init__(self, cloud_clock, ahead_s):
        self._cloud_clock, self._ahead = cloud_clock, timedelta(seconds=ahead_s)

    def now(self):
        return self._cloud_clock.now() + self._ahead

    def monotonic(self):
        return self._cloud_clock.monotonic()

    def sleep(self, seconds):
        self._cloud_clock.sleep(seconds)


class CloudTime(ServerTime):
    """The time of the cloud, whose clock is ahead of this machine's."""

    def __init__(self, cloud_clock, ahead):
        super().__init__(cloud_clock)
        self._cloud_clock, self._ahead = cloud_clock, ahead

    def now(self):
        return self._cloud_clock.now()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@example(200, 10, 300)
@example(-200, 10, 300)
@example(86_400, 0, 1)
@example(-86_400, 0, 1)
@given(
    ahead_s=st.one_of(st.integers(-86_400, 86_400), st.integers(-300, 300)),
    starts_s=st.integers(0, 120),
    runs_s=st.integers(0, 7200),
)
def test_bill_is_the_lifetime_at_the_cloud_whatever_the_clock_of_this_machine(
    workspace, make, ahead_s, starts_s, runs_s
):
    cloud, name = workspace.cloud, f"demo-{uuid4().hex[:8]}"
    cloud.alive, cloud.launches, cloud.ends = {}, {}, {}
    cloud.before_up = lambda stack: None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workspace, "clock", WrongClock(cloud.clock, ahead_s))
        patch.setattr(type(cloud), "time", CloudTime(cloud.clock, timedelta(seconds=-ahead_s)))
        patch.setattr(cloud, "inventory", slowly(cloud, starts_s))
        workspace.provisioning.create(make.plan(make.candidate()), name)
        cloud.clock.sleep(runs_s)
        found = workspace.teardown.down(name, "us-east-1")
    (entry,) = workspace.ledger.entries(cluster=name)
    assert (entry.launched_at, entry.closed_at) == (min(cloud.launches.values()), max(cloud.ends.values()))
    assert (entry.closed_at - entry.launched_at).total_seconds() == starts_s + runs_s
    assert found.usd == (HOURLY * max(60, starts_s + runs_s) / HOUR_S).quantize(Decimal("0.000001"))
    assert not found.estimated
    noted = [text for text in workspace.notes if "this machine's clock is" in text]
    workspace.heard.clear()
    assert bool(noted) is (abs(ahead_s) >= 10)


def slowly(cloud, seconds):
    """Return the cloud's function that waits for the nodes, after a wait."""
    wait = cloud.inventory

    def inventory(record, instance_ids, emit):
        cloud.clock.sleep(seconds)
        return wait(record, instance_ids, emit)

    return inventory


@pytest.mark.parametrize("ahead_s", [-200, 200])
def test_estimated_end_is_the_confirmation_by_the_clock_of_the_cloud(workspace, record, ahead_s):
    ended(workspace, listed=False)
    workspace.cloud.clock.sleep(2 * HOUR_S)
    workspace.clock = WrongClock(workspace.cloud.clock, ahead_s)
    found = workspace.teardown.down("demo", "us-east-1")
    assert (found.usd, found.estimated) == (HOURLY * 2, True)


def refused_launch(workspace, make, *, never_ran):
    """Launch on a candidate whose two instances are launched and then terminated, and return its ledger row."""
    cloud = workspace.cloud
    ids = ("i-1", "i-2")
    start = cloud.clock.now() + timedelta(seconds=3)

    def refuse(stack):
        for index, node in enumerate(ids):
            ran_s = 40 + 50 * index
            cloud.lives[node] = Lifetime("instance", node, False, start, start + timedelta(seconds=ran_s), never_ran)
        cloud.clock.sleep(100)
        error = CapacityError("one of two nodes was launched", code="InsufficientInstanceCapacity")
        error.launched = ids
        raise error

    cloud.lives = {}
    cloud.before_up = refuse
    cloud.lifetimes = lambda region, asked: {node: cloud.lives[node] for node in asked if node in cloud.lives}
    with pytest.raises(NoCapacityError):
        workspace.provisioning.create(make.plan(make.candidate()), "demo")
    (entry,) = workspace.ledger.entries()
    assert entry.state == "closed"
    return entry, start


def test_failed_launch_is_billed_by_the_times_of_the_cloud_as_an_upper_bound(workspace, make):
    entry, start = refused_launch(workspace, make, never_ran=False)
    assert (entry.launched_at, entry.parts["nodes"].at) == (start, start + timedelta(seconds=90))
    assert entry.parts["nodes"].estimated
    usd = ClusterBilling(workspace.context).usd([entry], workspace.clock.now())
    assert usd == (HOURLY * 90 / HOUR_S).quantize(Decimal("0.000001"))


def test_instances_that_never_ran_are_not_billed(workspace, make):
    entry, _ = refused_launch(workspace, make, never_ran=True)
    assert (entry.instance_ids, entry.launched_at) == ((), None)
    assert ClusterBilling(workspace.context).usd([entry], workspace.clock.now()) == 0
