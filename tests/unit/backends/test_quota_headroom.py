"""Quota headroom: queried in parallel, cached with its age, and unknown if the cloud does not report it."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.backends.quota_headroom import MAX_CACHE_AGE, QuotaHeadroom, RegionQuotas, headroom_by_quota
from cloudgpu.catalog.prices_and_quotas import quota_of
from cloudgpu.errors import AuthError
from cloudgpu.paths import Home
from cloudgpu.plan.capacity import VcpuHeadroom
from tests.manual_clock import ManualClock

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
P = "L-417A185B"


@dataclass
class ScriptedAccount:
    target: str = "aws"
    endpoint: str = ""
    whose: str = "1"
    limits: dict = field(default_factory=lambda: {P: 192})
    runs: dict = field(default_factory=lambda: {quota_of("p3dn", "on-demand"): 96})
    denied: tuple = ()
    calls: list = field(default_factory=list)

    def account(self):
        return self.whose

    def regions(self):
        return ["us-east-1", "eu-west-1"]

    def quota_limits(self, region):
        self.calls.append(("limits", region))
        if "limits" in self.denied:
            raise AuthError(f"reading the quotas of {region}: denied", code="AccessDenied")
        return self.limits

    def running_vcpus(self, region):
        self.calls.append(("running", region))
        if "running" in self.denied:
            raise AuthError(f"counting what runs in {region}: denied", code="UnauthorizedOperation")
        return self.runs


@pytest.fixture
def clock():
    return ManualClock(NOW)


@pytest.fixture
def cache(tmp_path, clock):
    return QuotaHeadroom(Home(tmp_path).ensure(), clock)


def headroom(found, region="us-east-1"):
    return headroom_by_quota(found).get((region, P))


def test_headroom_has_limit_and_usage_by_region_and_code(cache):
    found = cache.asked(ScriptedAccount(), ["us-east-1", "eu-west-1", "us-east-1"])
    assert headroom_by_quota(found) == {
        (region, P): VcpuHeadroom(192, 96, NOW) for region in ("us-east-1", "eu-west-1")
    }
    assert [quotas.region for quotas in cache.asked(ScriptedAccount(), None)] == ["us-east-1", "eu-west-1"]


def test_quota_limit_is_cached_but_usage_is_read_every_time(cache, clock):
    cloud = ScriptedAccount()
    cache.asked(cloud, ["us-east-1"])
    cloud.limits, cloud.runs = {P: 960}, {}
    clock.sleep(MAX_CACHE_AGE.total_seconds() - 1)
    assert headroom(cache.asked(cloud, ["us-east-1"])) == VcpuHeadroom(192, 0, NOW)
    assert [call for call, _ in cloud.calls] == ["limits", "running", "running"]
    clock.sleep(1)
    assert headroom(cache.asked(cloud, ["us-east-1"])).limit_vcpus == 960
    cloud.limits = {P: 5}
    assert headroom(cache.asked(cloud, ["us-east-1"])).limit_vcpus == 960
    assert headroom(cache.asked(cloud, ["us-east-1"], anew=True)).limit_vcpus == 5


def test_clock_set_back_expires_the_cached_limit(cache, clock):
    cloud = ScriptedAccount()
    cache.asked(cloud, ["us-east-1"])
    clock.sleep(-86400)
    cloud.limits = {P: 0}
    assert headroom(cache.asked(cloud, ["us-east-1"])).limit_vcpus == 0


def test_denied_quota_is_unknown_rather_than_zero(cache):
    (found,) = cache.asked(ScriptedAccount(denied=("limits",)), ["us-east-1"])
    assert headroom_by_quota([found]) == {}
    assert found.trouble == ("reading the quotas of us-east-1: denied",)
    (found,) = cache.asked(ScriptedAccount(denied=("running",)), ["us-east-1"])
    assert found.room(P) == VcpuHeadroom(192, None, NOW)
    assert found.room(P).free_vcpus is None


def test_denied_query_keeps_the_cached_values_for_offline_use(cache, clock):
    cache.asked(ScriptedAccount(), ["us-east-1"])
    clock.sleep(3600)
    cache.asked(ScriptedAccount(denied=("limits", "running")), ["us-east-1"])
    assert headroom(cache.cached("aws", ["us-east-1"])) == VcpuHeadroom(192, 96, NOW)


def test_cached_quotas_are_returned_with_their_age(cache, clock):
    assert headroom_by_quota(cache.cached("aws", ["us-east-1"])) == {}
    cache.asked(ScriptedAccount(), ["us-east-1"])
    clock.sleep(86400)
    assert headroom(cache.cached("aws", ["us-east-1"])) == VcpuHeadroom(192, 96, NOW)
    assert cache.cached("aws", ["eu-west-1"]) == (RegionQuotas("eu-west-1"),)
    assert [quotas.region for quotas in cache.cached("aws", None)] == ["us-east-1"]
    assert cache.cached("rehearsal", None) == ()


@pytest.mark.parametrize("change", [{"whose": "2"}, {"endpoint": "rehearsal:K"}])
def test_cached_limit_of_another_account_or_endpoint_is_not_used(cache, change):
    cache.asked(ScriptedAccount(), ["us-east-1"])
    assert headroom(cache.asked(ScriptedAccount(limits={P: 0}, **change), ["us-east-1"])).limit_vcpus == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"account": "1", "endpoint": ""}', '{"regions": {"us-east-1": []}}'])
def test_damaged_quota_cache_is_treated_as_empty(cache, tmp_path, text):
    path = Home(tmp_path).catalog("aws").quotas
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert cache.cached("aws", None) == ()
    assert headroom(cache.asked(ScriptedAccount(), ["us-east-1"])) == VcpuHeadroom(192, 96, NOW)


def test_forgotten_quotas_are_queried_again(cache):
    cache.asked(cloud := ScriptedAccount(), ["us-east-1"])
    cache.forget("rehearsal")
    assert cache.cached("aws", ["us-east-1"]) != (RegionQuotas("us-east-1"),)
    cache.forget("aws")
    cache.forget("aws")
    cloud.limits = {P: 960}
    assert headroom(cache.asked(cloud, ["us-east-1"])).limit_vcpus == 960


def test_unwritable_state_home_does_not_block_quota_queries(cache, tmp_path):
    (tmp_path / "catalog").write_text("")
    assert headroom(cache.asked(ScriptedAccount(), ["us-east-1"])) == VcpuHeadroom(192, 96, NOW)


def test_usage_of_unknown_size_leaves_headroom_unknown(cache):
    cloud = ScriptedAccount(runs={quota_of("p3dn", "on-demand"): None})
    assert headroom(cache.asked(cloud, ["us-east-1"])) == VcpuHeadroom(192, None, NOW)
    assert headroom(cache.cached("aws", ["us-east-1"])) == VcpuHeadroom(192, None, NOW)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_free_vcpus_are_never_negative(limit, used):
    headroom = VcpuHeadroom(limit, used)
    assert headroom.free_vcpus == max(0, limit - used)
