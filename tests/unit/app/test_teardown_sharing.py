"""`down` where a name is used twice, records are lost or damaged, disks are full, and several regions were touched."""

from datetime import timedelta
from decimal import Decimal

import pytest

from cloudgpu.app.records import Records
from cloudgpu.errors import BadRequestError, BusyError, CloudError, StateError, TeardownError, UsageError


def up(bench, make, name="demo", **plan):
    return bench.provisioning.up(make.plan(make.candidate(), **plan), name).record


def tags(owner="ann", token="other"):
    return {"cloudgpu:owner": owner, "cloudgpu:token": token}


def lost_record(bench, name="demo"):
    bench.home.cluster(name).record.unlink()


def rows(bench):
    return {(entry.spending.owner, entry.state) for entry in bench.ledger.entries()}


def test_down_leaves_another_owners_cluster_of_the_same_name(bench, make):
    up(bench, make)
    bench.cloud.strays = [make.thing("instance", "i-bobs", "us-east-1", tags("bob"))]
    assert bench.teardown.down("demo", "us-east-1").strays == ()
    assert [one.id for one in bench.cloud.strays] == ["i-bobs"]


def test_down_of_only_another_owners_cluster_is_refused(bench, make):
    bench.cloud.strays = [make.thing("instance", "i-bobs", "us-east-1", tags("bob"))]
    with pytest.raises(UsageError, match="belongs to bob"):
        bench.teardown.down("demo", "us-east-1")
    assert bench.cloud.strays


def test_down_closes_no_row_of_another_cluster_of_the_name(bench, make):
    up(bench, make)
    lost_record(bench)
    bench.owner = "bob"
    bench.cloud.endpoint = "rehearsal:OTHER"
    up(bench, make)
    bench.teardown.down("demo", "us-east-1")
    assert rows(bench) == {("ann", "open"), ("bob", "closed")}


def test_a_failed_up_ends_only_what_carries_its_own_token(bench, make):
    bench.cloud.strays = [make.thing("volume", "vol-mine-from-elsewhere", "us-east-1", tags("ann"))]
    bench.cloud.refusals = {"us-east-1c": BadRequestError("the name is taken", code="InvalidGroup.Duplicate")}
    with pytest.raises(BadRequestError):
        up(bench, make)
    assert bench.cloud.strays


def test_down_without_a_record_goes_through_every_region_of_the_ledger_and_closes_its_rows(bench, make):
    bench.provisioning.up(make.plan(make.candidate("us-west-2a")), "demo")
    lost_record(bench)
    bench.cloud.strays = [make.thing("instance", "i-us-west-2a-0", "us-west-2", tags("ann"))]
    bench.cloud.searched.clear()
    bench.clock.sleep(1800)
    ended = bench.teardown.down("demo", "us-east-1")
    assert {("us-east-1",), ("us-west-2",)} <= set(bench.cloud.searched)
    assert ended.strays == ("instance i-us-west-2a-0",)
    assert ended.usd == Decimal("31.212")
    assert rows(bench) == {("ann", "closed")}


def test_down_of_nothing_is_no_success_where_the_ledger_knows_it_in_another_account(bench, make):
    bench.cloud.target, bench.cloud.endpoint = "aws", ""
    plan = make.plan(make.candidate())
    bench.provisioning.up(_on_aws(plan), "demo")
    lost_record(bench)
    bench.cloud.account_id = "999900001111"
    with pytest.raises(StateError, match="in account 111122223333, not in 999900001111"):
        bench.teardown.down("demo", "us-east-1")
    assert rows(bench) == {("ann", "open")}


def _on_aws(plan):
    from dataclasses import replace

    return replace(plan, target="aws")


def test_a_damaged_record_hides_no_other_and_down_still_ends_the_cluster(bench, make):
    up(bench, make)
    up(bench, make, "other")
    bench.home.cluster("demo").record.write_text('{"name": "demo", "created_at": 7}')
    states = {record.name: record.state for record in bench.records.clusters()}
    assert states == {"demo": "damaged", "other": "up"}
    bench.cloud.strays = [make.thing("instance", "i-us-east-1c-0", "us-east-1", tags("ann"))]
    assert bench.teardown.down("demo", "us-east-1").strays == ("instance i-us-east-1c-0",)
    assert [record.name for record in bench.records.clusters()] == ["other"]


def test_a_damaged_journal_is_made_up_for_by_tags_looked_at_twice(bench, make):
    record = up(bench, make)
    bench.cloud.destroy_fails = StateError("the journal is damaged")
    bench.cloud.strays = [make.thing("fleet", "fleet-1", "us-east-1", tags("ann", record.token))]
    assert bench.teardown.down("demo", "us-east-1").strays == ("fleet fleet-1",)
    assert len(bench.cloud.searched) >= 4
    assert bench.records.clusters() == []


def test_a_full_disk_does_not_keep_a_cluster_alive(bench, make, monkeypatch):
    up(bench, make)

    def full(self, record, now):
        raise StateError("no space left on the disk")

    monkeypatch.setattr(Records, "save_cluster", full)
    assert bench.teardown.down("demo", "us-east-1").known
    assert bench.ledger.entries(state="open") == ()


def test_trouble_in_one_region_does_not_spare_the_other(bench, make):
    bench.cloud.refusals = {}
    record = up(bench, make)
    two = make.replace(record, regions=("eu-west-1", "us-east-1"))
    bench.records.save_cluster(two, bench.clock.now())
    bench.cloud.destroy_fails = CloudError("cannot reach ec2.eu-west-1")
    with pytest.raises(TeardownError) as caught:
        bench.teardown.down("demo", "us-east-1")
    assert caught.value.left == ("eu-west-1: cannot reach ec2.eu-west-1", "us-east-1: cannot reach ec2.eu-west-1")
    tried = [region for kind, region, _ in bench.cloud.calls if kind == "destroy"]
    assert tried == ["eu-west-1", "us-east-1"]


def test_what_a_killed_up_had_bought_is_on_the_bill(bench, make):
    class Killed(BaseException):
        pass

    def die(stack):
        record = bench.records.cluster("demo")
        bench.cloud.strays = [make.thing("instance", f"i-{n}", "us-east-1", tags("ann", record.token)) for n in (0, 1)]
        raise Killed

    bench.cloud.before_up = die
    with pytest.raises(Killed):
        up(bench, make)
    bench.clock.sleep(3600 - 60)
    bench.clock.sleep(60)
    assert bench.teardown.down("demo", "us-east-1").usd == 2 * Decimal("31.212")


def test_the_first_cause_and_what_is_left_are_both_told(bench, make):
    bench.cloud.refusals = {"us-east-1c": BadRequestError("no such subnet", code="InvalidSubnetID.NotFound")}
    bench.cloud.destroy_fails = TeardownError("1 is left", left=["vpc vpc-1"])
    with pytest.raises(
        TeardownError, match="no such subnet; and what was made could not be ended: 1 is left"
    ) as caught:
        up(bench, make)
    assert caught.value.left == ("vpc vpc-1",)
    assert isinstance(caught.value.__cause__, BadRequestError)
    assert caught.value.exit_code == 6


def test_a_bug_leaves_no_cluster(bench, make):
    def bug(stack):
        raise ZeroDivisionError

    bench.cloud.before_up = bug
    with pytest.raises(ZeroDivisionError):
        up(bench, make)
    assert bench.records.clusters() == []
    assert bench.ledger.entries(state="open") == ()


def test_runs_of_a_cluster_that_was_ended_are_over(bench, training):
    detached = training(detach=True)
    bench.teardown.down(detached.record.cluster, "us-east-1")
    record = bench.records.run(detached.record.run_id)
    assert (record.state, record.reason) == ("cancelled", "its cluster was ended")
    assert [run.ended_at for run in bench.ledger.runs()] == [bench.clock.now()]


@pytest.mark.parametrize("name", ["../escape", "a/b", "", "..", "Upper"])
def test_a_name_cannot_lead_out_of_the_home(bench, name):
    with pytest.raises(UsageError):
        bench.teardown.down(name, "us-east-1")
    assert not (bench.home.root / "escape").exists()


def test_nothing_of_a_cluster_stays_in_the_home(bench, make):
    up(bench, make)
    bench.teardown.down("demo", "us-east-1")
    bench.teardown.down("never-was", "us-east-1")
    assert list(bench.home.clusters.iterdir()) == []


def test_the_lease_outlives_the_record(bench, make, monkeypatch):
    """Whoever waits for the lease must not find the record of the cluster that is being forgotten."""
    up(bench, make)
    seen = []
    forget = Records.forget_cluster

    def watched(self, name):
        forget(self, name)
        seen.append((bench.home.cluster(name).root / "lease").exists())

    monkeypatch.setattr(Records, "forget_cluster", watched)
    bench.teardown.down("demo", "us-east-1")
    assert seen == [True]


def test_a_name_that_somebody_has_by_the_shared_ledger_is_refused(bench, make):
    up(bench, make)
    lost_record(bench)
    bench.owner = "bob"
    with pytest.raises(BusyError, match="demo of ann"):
        up(bench, make)
    assert rows(bench) == {("ann", "open")}


def test_a_name_that_somebody_has_by_the_tags_is_refused(bench, make):
    bench.cloud.strays = [make.thing("instance", "i-bobs", "us-east-1", tags("bob"))]
    with pytest.raises(BusyError, match="demo of bob"):
        up(bench, make)
    assert bench.records.clusters() == []
    assert bench.cloud.calls == []


def test_an_expired_row_does_not_take_a_name_for_ever(bench, make):
    up(bench, make)
    lost_record(bench)
    bench.clock.sleep(timedelta(hours=2).total_seconds())
    assert up(bench, make).state == "up"
