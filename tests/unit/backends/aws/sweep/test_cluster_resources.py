"""Clusters as described by their tags, and their cost."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from cloudgpu.backends import sweep
from cloudgpu.backends.sweep import group_by_cluster
from cloudgpu.catalog import load
from tests.tagged_resource import Resource

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def tags(cluster="lab", owner="ann", token="t", expires=NOW + HOUR, **more):
    stamp = {"cloudgpu:expires-at": f"{expires:%Y-%m-%dT%H:%M:%SZ}"} if expires else {}
    own = {"cloudgpu:cluster": cluster, "cloudgpu:owner": owner, "cloudgpu:token": token}
    return {key: value for key, value in {**own, **stamp, **more}.items() if value is not None}


def node(number=0, *, since=NOW - 2 * HOUR, kind="p3dn.24xlarge", market="on-demand", state="running", **named):
    return Resource("instance", f"i-{number}", "us-east-1", tags(**named), state, since, kind, market)


def with_address(instance):
    return replace(instance, public_addresses=1)


def single_cluster(*things):
    (found,) = group_by_cluster(things, load(), NOW)
    return found


def test_resources_are_grouped_by_cluster_token():
    found = group_by_cluster([node(1), Resource("role", "r", "global", tags()), node(2, token="other")], load(), NOW)
    assert [(len(cluster.things), cluster.token) for cluster in found] == [(1, "other"), (2, "t")]
    assert found[1].regions == ("global", "us-east-1")


def disk(size_gib=200, kind="gp3", region="us-east-1", since=NOW - 2 * HOUR):
    return Resource("volume", "v", region, tags(), "in-use", since, volume_type=kind, size_gib=size_gib)


def test_cluster_cost_is_catalog_price_times_node_time():
    lab = single_cluster(node(1), node(2, since=NOW - HOUR))
    assert lab.hourly_usd == Decimal("62.424")
    assert lab.spent_usd == Decimal("62.42") + Decimal("31.21")
    assert lab.monthly_usd == Decimal("62.424") * 730
    assert lab.unpriced == ()
    assert lab.since == NOW - 2 * HOUR


def test_disks_addresses_and_gateways_are_billed_without_nodes():
    address, gateway = (
        Resource("elastic-ip", "e", tags=tags()),
        Resource("nat-gateway", "n", tags=tags(), since=NOW - HOUR),
    )
    lab = single_cluster(disk(), address, gateway, Resource("security-group", "s", tags=tags()))
    gp3 = Decimal(200) * Decimal("0.08") / 720
    assert lab.hourly_usd == (gp3 + Decimal("0.005") + Decimal("0.045")).quantize(Decimal("0.0001"))
    assert lab.spent_usd == Decimal("0.04") + Decimal("0.01") + Decimal("0.04")
    assert (lab.instances, lab.unpriced) == ((), ())


def test_public_addresses_of_running_nodes_are_billed_with_the_nodes():
    nodes = with_address(node(1)), with_address(node(2)), with_address(node(3, state="shutting-down"))
    lab = single_cluster(*nodes)
    assert lab.hourly_usd == Decimal("62.434")
    assert lab.spent_usd == 2 * Decimal("62.42") + 2 * Decimal("0.01")


def test_public_address_with_unknown_price_is_reported_as_unpriced(monkeypatch):
    monkeypatch.setattr(sweep, "other_price", lambda *_: None)
    lab = single_cluster(with_address(node(1)))
    assert (lab.hourly_usd, lab.unpriced) == (Decimal("31.212"), ("public-ip",))


@pytest.mark.parametrize("volume", [disk(kind="io2"), disk(size_gib=None), disk(region="mx-central-1")])
def test_disk_with_unknown_price_is_reported_as_unpriced(volume):
    lab = single_cluster(node(1), volume)
    assert (lab.hourly_usd, lab.unpriced) == (Decimal("31.212"), ("volume",))


@pytest.mark.parametrize("changes", [{"kind": "x9.huge"}, {"market": "spot"}])
def test_unknown_node_price_makes_the_total_unknown(changes):
    lab = single_cluster(node(1), node(2, **changes))
    assert (lab.hourly_usd, lab.spent_usd, lab.monthly_usd) == (None, None, None)
    assert lab.as_json(NOW)["hourly_usd"] is None


def test_node_of_unknown_age_has_a_price_but_no_cost():
    lab = single_cluster(node(1, since=None))
    assert (lab.hourly_usd, lab.spent_usd, lab.since) == (Decimal("31.212"), None, None)
    assert lab.as_json(NOW)["age_s"] is None


def test_terminated_nodes_cost_nothing():
    lab = single_cluster(node(1, state="shutting-down"), Resource("fleet", "f", tags=tags()))
    assert (lab.instances, lab.hourly_usd) == ((), Decimal(0))


def test_named_storage_is_not_a_cluster_resource():
    assert group_by_cluster([Resource("volume", "v", tags=tags(**{"cloudgpu:storage": "data"}))], load(), NOW) == ()


def test_cluster_expiry_is_the_latest_of_its_resources():
    lab = single_cluster(node(1, expires=NOW - HOUR), node(2, expires=NOW + HOUR))
    assert lab.expires_at == NOW + HOUR
    assert single_cluster(node(1, expires=None)).expires_at is None
    assert single_cluster(node(1, expires=None, **{"cloudgpu:expires-at": "soon"})).expires_at is None
