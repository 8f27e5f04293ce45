"""What quotas leave: asked in parallel, remembered with its age, and unknown where nobody tells."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.backends.quota_headroom import MAX_CACHE_AGE, QuotaHeadroom, RegionQuotas, headroom_by_quota
from cloudgpu.catalog.quotas import quota_of
from cloudgpu.clock import ManualClock
from cloudgpu.errors import AuthError
from cloudgpu.paths import Home
from cloudgpu.plan.quota_headroom import VcpuHeadroom

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
P = "L-417A185B"


@dataclass
class Told:
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
def kept(tmp_path, clock):
    return QuotaHeadroom(Home(tmp_path).ensure(), clock)


def room(found, region="us-east-1"):
    return headroom_by_quota(found).get((region, P))


def test_limit_and_use_are_told_by_region_and_code(kept):
    found = kept.asked(Told(), ["us-east-1", "eu-west-1", "us-east-1"])
    assert headroom_by_quota(found) == {
        (region, P): VcpuHeadroom(192, 96, NOW) for region in ("us-east-1", "eu-west-1")
    }
    assert [one.region for one in kept.asked(Told(), None)] == ["us-east-1", "eu-west-1"]


def test_a_limit_is_asked_for_again_after_minutes_and_what_runs_each_time(kept, clock):
    cloud = Told()
    kept.asked(cloud, ["us-east-1"])
    cloud.limits, cloud.runs = {P: 960}, {}
    clock.sleep(MAX_CACHE_AGE.total_seconds() - 1)
    assert room(kept.asked(cloud, ["us-east-1"])) == VcpuHeadroom(192, 0, NOW)
    assert [call for call, _ in cloud.calls] == ["limits", "running", "running"]
    clock.sleep(1)
    assert room(kept.asked(cloud, ["us-east-1"])).limit_vcpus == 960
    cloud.limits = {P: 5}
    assert room(kept.asked(cloud, ["us-east-1"])).limit_vcpus == 960
    assert room(kept.asked(cloud, ["us-east-1"], anew=True)).limit_vcpus == 5


def test_a_clock_that_was_set_back_does_not_make_a_limit_last(kept, clock):
    cloud = Told()
    kept.asked(cloud, ["us-east-1"])
    clock.sleep(-86400)
    cloud.limits = {P: 0}
    assert room(kept.asked(cloud, ["us-east-1"])).limit_vcpus == 0


def test_what_is_denied_is_unknown_and_never_zero(kept):
    (found,) = kept.asked(Told(denied=("limits",)), ["us-east-1"])
    assert headroom_by_quota([found]) == {}
    assert found.trouble == ("reading the quotas of us-east-1: denied",)
    (found,) = kept.asked(Told(denied=("running",)), ["us-east-1"])
    assert found.room(P) == VcpuHeadroom(192, None, NOW)
    assert found.room(P).free_vcpus is None


def test_what_is_denied_now_is_not_forgotten_for_offline(kept, clock):
    kept.asked(Told(), ["us-east-1"])
    clock.sleep(3600)
    kept.asked(Told(denied=("limits", "running")), ["us-east-1"])
    assert room(kept.cached("aws", ["us-east-1"])) == VcpuHeadroom(192, 96, NOW)


def test_offline_shows_what_was_told_last_with_its_age(kept, clock):
    assert headroom_by_quota(kept.cached("aws", ["us-east-1"])) == {}
    kept.asked(Told(), ["us-east-1"])
    clock.sleep(86400)
    assert room(kept.cached("aws", ["us-east-1"])) == VcpuHeadroom(192, 96, NOW)
    assert kept.cached("aws", ["eu-west-1"]) == (RegionQuotas("eu-west-1"),)
    assert [one.region for one in kept.cached("aws", None)] == ["us-east-1"]
    assert kept.cached("rehearsal", None) == ()


@pytest.mark.parametrize("change", [{"whose": "2"}, {"endpoint": "rehearsal:K"}])
def test_a_limit_of_another_account_or_endpoint_is_never_used(kept, change):
    kept.asked(Told(), ["us-east-1"])
    assert room(kept.asked(Told(limits={P: 0}, **change), ["us-east-1"])).limit_vcpus == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"account": "1", "endpoint": ""}', '{"regions": {"us-east-1": []}}'])
def test_a_damaged_memory_is_an_empty_one(kept, tmp_path, text):
    path = Home(tmp_path).catalog("aws").quotas
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert kept.cached("aws", None) == ()
    assert room(kept.asked(Told(), ["us-east-1"])) == VcpuHeadroom(192, 96, NOW)


def test_what_is_forgotten_is_asked_for_again(kept):
    kept.asked(cloud := Told(), ["us-east-1"])
    kept.forget("rehearsal")
    assert kept.cached("aws", ["us-east-1"]) != (RegionQuotas("us-east-1"),)
    kept.forget("aws")
    kept.forget("aws")
    cloud.limits = {P: 960}
    assert room(kept.asked(cloud, ["us-east-1"])).limit_vcpus == 960


def test_a_home_that_cannot_be_written_stops_nobody(kept, tmp_path):
    (tmp_path / "catalog").write_text("")
    assert room(kept.asked(Told(), ["us-east-1"])) == VcpuHeadroom(192, 96, NOW)


def test_a_quota_of_which_something_of_unknown_size_runs_has_no_known_room(kept):
    cloud = Told(runs={quota_of("p3dn", "on-demand"): None})
    assert room(kept.asked(cloud, ["us-east-1"])) == VcpuHeadroom(192, None, NOW)
    assert room(kept.cached("aws", ["us-east-1"])) == VcpuHeadroom(192, None, NOW)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_what_is_free_is_never_below_nothing(limit, used):
    one = VcpuHeadroom(limit, used)
    assert one.free_vcpus == max(0, limit - used)
