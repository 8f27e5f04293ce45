"""A plan comes from a recipe or from a plan file, and options cannot override a plan file."""

from pathlib import Path

import pytest

from cloudgpu.cli.commands.option_groups import PlanOptions
from cloudgpu.cli.commands.saved_plan import select_plan_source
from cloudgpu.errors import UsageError


def test_recipe_keeps_assignments_and_prefer_option_is_applied_last():
    found = select_plan_source(
        PlanOptions(["a=1", "resources.prefer=order"], "price"), "plain", on="rehearsal", region=None
    )
    assert (found.recipe, found.target, found.region, found.stored) == ("plain", "rehearsal", None, None)
    assert found.sets == ("a=1", "resources.prefer=order", "resources.prefer=price")


def test_missing_recipe_and_plan_file_is_rejected():
    with pytest.raises(UsageError, match="missing argument RECIPE") as caught:
        select_plan_source(PlanOptions(), "", on=None, region=None)
    assert "--plan FILE" in caught.value.hint


@pytest.mark.parametrize(
    ("recipe", "sets", "prefer", "where", "told"),
    [
        ("plain", None, None, {}, "RECIPE"),
        ("", ["a=1"], None, {}, "--set"),
        ("", None, "price", {}, "--prefer"),
        ("", None, None, {"on": "aws"}, "--on"),
        ("plain", ["a=1"], None, {"region": "us-east-1"}, "RECIPE, --set, --region"),
    ],
)
def test_options_already_set_by_the_plan_file_are_rejected(recipe, sets, prefer, where, told):
    with pytest.raises(UsageError, match=f"--plan agreed.json already sets {told}"):
        select_plan_source(
            PlanOptions(sets, prefer, Path("agreed.json")), recipe, **{"on": None, "region": None, **where}
        )


def test_missing_plan_file_is_reported(tmp_path):
    with pytest.raises(UsageError, match="cannot read plan file"):
        select_plan_source(PlanOptions(plan=tmp_path / "none.json"), "", on=None, region=None)
