"""GPU specs in a recipe and the candidates that result from them."""

from datetime import date

import pytest

from cloudgpu.catalog import load
from cloudgpu.plan import planner
from cloudgpu.plan.plan import Quotes
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.recipe import rules
from cloudgpu.recipe.schema import Recipe

CATALOG = load()
OTHERS = [kind.name for kind in CATALOG.types.values() if kind.provider != "aws"]


def recipe(**resources):
    return Recipe.model_validate(
        {
            "schema": 1,
            "name": "tiny",
            "resources": resources,
            "launch": {"with": "torchrun", "command": "train.py"},
            "budget": {"expiry": "1h"},
        }
    )


def make(one, target="aws"):
    return planner.build_plan(
        PlannerInput(
            one, target=target, catalog=CATALOG, quotes=Quotes(), default_region="us-east-1", today=date(2026, 8, 1)
        )
    )


@pytest.mark.parametrize(
    ("spec", "types"),
    [
        ("A100:8", {"p4d.24xlarge", "p4de.24xlarge"}),
        ("A100-80GB:8", {"p4de.24xlarge"}),
        ("V100-32GB:8", {"p3dn.24xlarge"}),
        ("RTX-PRO-Server-6000-96GB:2", {"g7e.12xlarge"}),
    ],
)
def test_gpu_spec_with_memory_selects_matching_types(spec, types):
    for resources in ({"gpu": spec}, {"any_of": [spec]}):
        one = recipe(**resources)
        assert list(rules.rule_problems(one)) == []
        assert {candidate.instance_type for candidate in make(one).candidates} == types


def test_unknown_gpu_memory_size_is_rejected_with_available_sizes():
    (error,) = make(recipe(gpu="A100-60GB:8")).errors
    assert (error.check, error.message) == (
        "gpu",
        "A100 does not come with 60 GB of memory; available sizes: 40 GB, 80 GB",
    )
    assert "--set resources.gpu=A100-80GB:8" in (error.fix, *error.remedies)


@pytest.mark.parametrize("target", ["aws", "rehearsal"])
def test_non_aws_instance_type_is_never_a_candidate(target):
    assert len(OTHERS) > 20
    for name in OTHERS:
        for resources in ({"instance_type": name}, {"any_of": [name, "p3dn.24xlarge"]}):
            plan = make(recipe(**resources), target)
            assert {one.instance_type for one in plan.candidates} <= {"p3dn.24xlarge"}
            assert [one.message for one in plan.errors if name in one.message], name
