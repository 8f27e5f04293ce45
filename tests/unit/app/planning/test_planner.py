"""A plan queries only enabled regions, and the price list for the prices that the catalog lacks."""

from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from cloudgpu.app.planning.planner import Preflight
from cloudgpu.plan.plan import Quotes
from cloudgpu.settings import load
from tests.unit.app.plan_on import nowhere, plan_on

RECIPE = """
schema: 1
name: tiny
resources: {instance_type: p3dn.24xlarge, nodes: 2, regions: [us-east-1, us-west-2]}
launch: {with: torchrun, command: train.py}
outputs: [outputs/]
"""


@dataclass
class Cloud:
    """An account with some enabled regions. A query to any other region fails the test."""

    enabled: tuple[str, ...]
    queried: set[str] = field(default_factory=set)
    listed: dict[tuple[str, str], Decimal | str] = field(default_factory=dict)
    """Price list: (instance type, region) -> USD per hour, or the error message of the request."""
    priced: list[tuple[str, str]] = field(default_factory=list)
    """Pairs whose price was queried."""
    target = "aws"
    endpoint = ""

    def account(self):
        return "111122223333"

    def quota_limits(self, region):
        self._note([region])
        return {}

    def running_vcpus(self, region):
        self._note([region])
        return {}

    def _note(self, regions):
        self.queried |= set(regions)
        assert self.queried <= set(self.enabled), "a region that is not enabled was queried"

    def denied_role_actions(self, actions, boundary_arn):
        return ()

    def service_roles(self):
        return ("AWSServiceRoleForEC2Spot",)

    @property
    def queries(self):
        return self

    def regions(self):
        return self.enabled

    def quotes(self, wanted):
        self._note(region for _, region in wanted)
        return Quotes(zones={(name, region): (f"{region}b",) for name, region in wanted}, live=True)

    def on_demand_prices(self, pairs):
        self._note(region for _, region in pairs)
        self.priced += pairs
        return {pair: self.listed[pair] for pair in pairs if pair in self.listed}

    def image_ids(self, wanted):
        self._note(region for _, region in wanted)
        return {image: "ami-0123456789abcdef0" for image in wanted}

    def networks(self, regions, request):
        self._note(regions)
        return {}

    def machine_images(self, wanted):
        self._note(region for _, region in wanted)
        return {}


@pytest.fixture
def planned(tmp_path: Path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "train.py").touch()
    (folder / "recipe.yaml").write_text(RECIPE)
    settings = load(flags={"target": "aws"}, environ={"CLOUDGPU_HOME": str(tmp_path / "home")}, cwd=tmp_path)

    def plan(cloud, *sets):
        return plan_on(
            str(folder),
            sets=sets,
            home=nowhere(tmp_path),
            today=date(2026, 8, 1),
            cloud=cloud,
            preflight=Preflight(settings, {}),
        ).plan

    return plan


def test_only_enabled_regions_are_queried(planned):
    cloud = Cloud(("us-west-2", "eu-west-1"))
    plan = planned(cloud)
    assert cloud.queried == {"us-west-2"}
    assert {candidate.region for candidate in plan.candidates} == {"us-west-2"}
    (finding,) = [finding for finding in plan.findings if finding.check == "region-enabled"]
    assert (finding.severity, finding.message) == ("warning", "excluded: us-east-1 is not enabled for this account")


def test_recipe_with_only_disabled_regions_is_rejected(planned):
    cloud = Cloud(("eu-west-1",))
    plan = planned(cloud)
    assert cloud.queried == set()
    assert {finding.check for finding in plan.errors} == {"region-enabled"}


UNPRICED = ("resources.gpu=RTX-PRO-4500:1", "resources.regions=eu-north-1,us-east-1", "resources.nodes=1")


def test_price_that_catalog_lacks_is_read_from_price_list(planned):
    cloud = Cloud(("us-east-1", "eu-north-1"), listed={("g7.2xlarge", "eu-north-1"): Decimal("2.71")})
    plan = planned(cloud, *UNPRICED)
    assert set(cloud.priced) == {(f"g7.{size}xlarge", "eu-north-1") for size in (2, 4, 8)}, "us-east-1 has prices"
    read = {
        (candidate.instance_type, candidate.node_hourly_usd, candidate.priced_on)
        for candidate in plan.candidates
        if candidate.region == "eu-north-1"
    }
    assert read == {("g7.2xlarge", Decimal("2.71"), date(2026, 8, 1))}


def test_spot_candidate_costs_at_most_the_listed_price(planned):
    cloud = Cloud(("us-east-1", "eu-north-1"), listed={("g7.2xlarge", "eu-north-1"): Decimal("2.71")})
    plan = planned(cloud, *UNPRICED, "resources.market=spot")
    assert {one.node_hourly_usd for one in plan.candidates if one.region == "eu-north-1"} == {Decimal("2.71")}


def test_reason_why_price_list_cannot_be_read_is_shown(planned):
    why = "reading the price list of eu-north-1: the identity lacks the permission pricing:GetProducts"
    cloud = Cloud(("eu-north-1",), listed={("g7.2xlarge", "eu-north-1"): why})
    plan = planned(cloud, "resources.instance_type=g7.2xlarge", "resources.regions=eu-north-1", "resources.nodes=1")
    (error,) = plan.errors
    assert (error.check, error.message, error.fix) == (
        "price",
        f"no price is known for g7.2xlarge in eu-north-1: {why}",
        "cloudgpu catalog refresh --on aws --region eu-north-1",
    )


def test_prices_in_catalog_are_not_queried(planned):
    cloud = Cloud(("us-west-2",))
    planned(cloud)
    assert cloud.priced == []
