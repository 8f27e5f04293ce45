"""The global batch size and the required GPU memory."""

import pytest

from cloudgpu.recipe.field_types import SizeGib
from cloudgpu.recipe.launch_rules import samples_per_step
from cloudgpu.recipe.loader import validate_recipe
from cloudgpu.recipe.schema import Recipe


def values(batch, params=None):
    return {
        "schema": 1,
        "name": "tiny",
        "resources": {"gpu": "V100:8"},
        "params": params or {},
        "launch": {"with": "torchrun", "command": "train.py", "global_batch": batch},
    }


@pytest.mark.parametrize(
    ("batch", "params", "meant"),
    [
        (None, {}, None),
        (64, {}, 64),
        ("64", {}, 64),
        ("{batch}", {"batch": 256}, 256),
        ("{batch}", {"batch": "256"}, 256),
        ("{batch}0", {"batch": 25}, 250),
        ("{batch}", {"batch": 0}, None),
        ("{batch}", {"batch": "many"}, None),
        ("{other}", {"batch": 256}, None),
    ],
)
def test_global_batch_is_resolved_from_number_or_placeholder(batch, params, meant):
    assert samples_per_step(Recipe.model_validate(values(batch, params))) == meant


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ("{batsh}", 'launch.global_batch: unknown placeholder {batsh}; did you mean "batch"?'),
        ("{batch}/2", "launch.global_batch: expected a whole number, got {batch}/2"),
        ("{outputs}", "launch.global_batch: unknown placeholder {outputs}"),
    ],
)
def test_non_numeric_global_batch_is_a_recipe_problem(tmp_path, batch, said):
    (tmp_path / "train.py").touch()
    _, problems = validate_recipe(values(batch, {"batch": 64}), tmp_path)
    assert [problem.text[: len(said)] for problem in problems] == [said]


def test_global_batch_below_1_is_rejected(tmp_path):
    recipe, problems = validate_recipe(values(0), tmp_path)
    assert recipe is None
    assert any("global_batch" in problem.text for problem in problems)


def test_gpu_memory_is_parsed_with_its_unit():
    one = values(None)
    one["resources"]["gpu_memory"] = "24GiB"
    assert Recipe.model_validate(one).resources.gpu_memory == SizeGib(24)
