"""A plan does not query regions that the account has not enabled, and a rule excludes them."""

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
    """An account with some enabled regions. A query to any other region fails the test."""

    enabled: tuple[str, ...]
    queried: set[str] = field(default_factory=set)
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

    def inspector(self):
        return self

    def regions(self):
        return self.enabled

    def quotes(self, wanted):
        self._note(region for _, region in wanted)
        return Quotes(zones={(name, region): (f"{region}b",) for name, region in wanted}, live=True)

    def images(self, wanted):
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

    def plan(cloud):
        return plan_on(
            str(folder),
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
