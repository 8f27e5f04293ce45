"""`down` tells the truth: it succeeds only when a search is empty, and never takes another cloud's word."""

from datetime import timedelta
from decimal import Decimal

import pytest

from cloudgpu.errors import CloudError, StateError, TeardownError


def standing(bench, make):
    return bench.provisioning.up(make.plan(make.candidate()), "demo").record


def test_down_ends_the_cluster_closes_the_bill_and_forgets(bench, make):
    standing(bench, make)
    bench.clock.sleep(1800)
    ended = bench.teardown.down("demo", "us-east-1")
    assert ended.instances == ("i-us-east-1c-0", "i-us-east-1c-1")
    assert ended.usd == Decimal("31.212")
    assert ended.simulated
    assert bench.records.clusters() == []
    assert bench.ledger.entries(state="open") == ()


def test_down_of_nothing_says_so(bench):
    ended = bench.teardown.down("demo", "us-east-1")
    assert not ended.known
    assert ended.strays == ()


def test_down_finds_by_tag_what_no_record_knows(bench, make):
    bench.cloud.strays = [make.thing("instance", "i-stray", "us-east-1")]
    ended = bench.teardown.down("demo", "us-east-1")
    assert ended.strays == ("instance i-stray",)
    assert ("release", "", ("i-stray",)) in bench.cloud.calls


def test_down_fails_until_the_search_is_empty(bench, make):
    standing(bench, make)
    bench.cloud.stubborn = [make.thing("volume", "vol-1", "us-east-1")]
    with pytest.raises(TeardownError) as caught:
        bench.teardown.down("demo", "us-east-1")
    assert caught.value.left == ("volume vol-1 in us-east-1",)
    assert bench.records.cluster("demo").state == "ending"
    assert len(bench.ledger.entries(state="open")) == 1
    bench.cloud.stubborn = []
    assert bench.teardown.down("demo", "us-east-1").known


def test_unreachable_is_never_gone(bench, make):
    standing(bench, make)
    bench.cloud.destroy_fails = CloudError("cannot reach ec2.us-east-1")
    with pytest.raises(CloudError):
        bench.teardown.down("demo", "us-east-1")
    assert bench.records.cluster("demo") is not None
    assert len(bench.ledger.entries(state="open")) == 1


@pytest.mark.parametrize("change", ["account_id", "endpoint"])
def test_another_account_or_endpoint_is_an_error(bench, make, change):
    standing(bench, make)
    setattr(bench.cloud, change, "other")
    with pytest.raises(StateError, match="was made in"):
        bench.teardown.down("demo", "us-east-1")
    assert bench.records.cluster("demo") is not None


def test_a_node_that_outlived_its_expiry_is_billed_to_now(bench, make):
    standing(bench, make)
    bench.clock.sleep(timedelta(hours=3).total_seconds())
    assert bench.teardown.down("demo", "us-east-1").usd == 2 * Decimal("31.212") * 3
