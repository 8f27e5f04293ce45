"""Whom a plan asks: regions that the account has not enabled are left alone, and thrown out by a rule."""

from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import pytest

from cloudgpu.app.planning.preflight import Preflight
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
    """An account that has enabled some regions, and fails a test that asks another one."""

    enabled: tuple[str, ...]
    asked: set[str] = field(default_factory=set)
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
        self.asked |= set(regions)
        assert self.asked <= set(self.enabled), "a region that is not enabled was asked"

    def inspector(self):
        return self

    def regions(self):
        return self.enabled

    def quotes(self, wanted):
        self._note(region for _, region in wanted)
        return Quotes(zones={(name, region): (f"{region}b",) for name, region in wanted}, live=True)

    def images(self, wanted):
        self._note(region for _, region in wanted)
        return {one: "ami-0123456789abcdef0" for one in wanted}


@pytest.fixture
def planned(tmp_path: Path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "train.py").touch()
    (folder / "recipe.yaml").write_text(RECIPE)
    settings = load(flags={"target": "aws"}, environ={"CLOUDGPU_HOME": str(tmp_path / "home")}, cwd=tmp_path)

    def plan(cloud):
        return plan_on(
            str(folder),
            home=nowhere(tmp_path),
            today=date(2026, 8, 1),
            cloud=cloud,
            preflight=Preflight(settings, {}),
        ).plan

    return plan


def test_only_regions_that_the_account_may_use_are_asked(planned):
    cloud = Cloud(("us-west-2", "eu-west-1"))
    plan = planned(cloud)
    assert cloud.asked == {"us-west-2"}
    assert {one.region for one in plan.candidates} == {"us-west-2"}
    (told,) = [one for one in plan.findings if one.check == "region-enabled"]
    assert (told.severity, told.message) == ("warning", "excluded: us-east-1 is not enabled for this account")


def test_a_recipe_in_regions_that_are_all_closed_is_refused_for_that_reason(planned):
    cloud = Cloud(("eu-west-1",))
    plan = planned(cloud)
    assert cloud.asked == set()
    assert {one.check for one in plan.errors} == {"region-enabled"}
