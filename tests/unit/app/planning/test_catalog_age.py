"""The inputs of a plan: the catalog snapshot of the state home, and current or cached quotas."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from cloudgpu.backends.quota_headroom import QuotaHeadroom
from cloudgpu.catalog import load
from cloudgpu.catalog.prices_and_quotas import quota_of
from cloudgpu.catalog.snapshot import CatalogSnapshot, Reading, RegionReadings
from cloudgpu.catalog.snapshot_changes import apply_snapshot
from cloudgpu.errors import AuthError
from cloudgpu.paths import Home
from cloudgpu.plan.plan import Quotes
from tests.manual_clock import ManualClock
from tests.unit.app.plan_on import plan_on

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
P = "L-417A185B"
RECIPE = """
schema: 1
name: pair
resources: {instance_type: p3dn.24xlarge, nodes: 2, regions: [us-east-1]}
launch: {with: torchrun, command: train.py, ranks_per_node: 1}
budget: {expiry: 1h}
"""


class Cloud:
    """Offers every requested type in one zone. `limits` holds the quotas or the error to raise."""

    target, endpoint = "rehearsal", "rehearsal:KEY"

    def __init__(self, limits, runs=()):
        self.limits, self.runs = limits, dict(runs)

    def account(self):
        return "1"

    def quotes(self, wanted):
        return Quotes(zones=dict.fromkeys(wanted, ("us-east-1c",)), live=True)

    def machine_images(self, wanted):
        return {}

    def networks(self, regions, request):
        return {}

    def image_ids(self, wanted):
        return {}

    def quota_limits(self, region):
        if isinstance(self.limits, Exception):
            raise self.limits
        return self.limits

    def running_vcpus(self, region):
        return self.runs


@pytest.fixture
def headroom(tmp_path):
    return QuotaHeadroom(Home(tmp_path / "home").ensure(), ManualClock(NOW))


@pytest.fixture
def plan(tmp_path, headroom):
    (tmp_path / "pair").mkdir()
    (tmp_path / "pair" / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "pair" / "train.py").write_text("")

    def make(cloud=None, catalog=None):
        more = {} if catalog is None else {"catalog": catalog}
        return plan_on(
            "pair",
            home=Home(tmp_path / "home"),
            clock=ManualClock(NOW),
            target="rehearsal",
            today=date(2026, 11, 21),
            roots=[tmp_path],
            cloud=cloud,
            **more,
        ).plan

    return make


def about_quota(plan):
    return [(finding.severity, finding.message) for finding in plan.findings if finding.check == "quota"]


def test_plan_uses_price_and_date_from_the_snapshot(plan):
    read = Reading(NOW, "Pricing GetProducts", {"p3dn.24xlarge": Decimal("29.5")})
    spot = Reading(NOW, "EC2 DescribeSpotPriceHistory", {})
    snapshot = CatalogSnapshot("rehearsal", "1", "", {"us-east-1": RegionReadings(on_demand=read, spot=spot)})
    candidate = plan(catalog=apply_snapshot(load(), snapshot)).candidates[0]
    assert (candidate.node_hourly_usd, candidate.priced_on) == (Decimal("29.5"), NOW.date())
    shipped = plan().candidates[0]
    assert (shipped.node_hourly_usd, shipped.priced_on) == (Decimal("31.212"), date(2026, 7, 20))


def test_quota_below_the_request_is_an_error_naming_the_quota(plan):
    (short,) = about_quota(plan(Cloud({P: 96})))
    assert short == (
        "error",
        "2 x p3dn.24xlarge need 192 vCPUs in us-east-1, but Running On-Demand P instances (L-417A185B) allow only 96",
    )


def test_running_vcpus_reduce_the_quota_headroom(plan):
    assert about_quota(plan(Cloud({P: 192}))) == []
    (short,) = about_quota(plan(Cloud({P: 192}, {quota_of("p3dn", "on-demand"): 96})))
    assert short[0] == "warning"
    assert "96 of 192 vCPUs are in use, but 192 are needed" in short[1]


def test_unreadable_quota_is_an_unknown_finding(plan):
    (unknown,) = about_quota(plan(Cloud(AuthError("denied", code="AccessDenied"))))
    assert unknown[0] == "unknown"
    assert "L-417A185B" in unknown[1]


def test_offline_plan_reports_age_of_cached_quotas(plan):
    assert about_quota(plan()) == [], "no quotas are cached; another finding says that none were queried"
    plan(Cloud({P: 96}))
    (short,) = about_quota(plan())
    assert short[1].endswith("allow only 96 (as of 2026-11-21 12:00 UTC)")
    plan(Cloud({P: 960}, {quota_of("p3dn", "on-demand"): 864}))
    # The limit is cached for ten minutes, but usage is read every time.
    (short,) = about_quota(plan())
    assert "allow only 96 (as of" in short[1]
