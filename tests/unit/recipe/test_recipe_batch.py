"""The batch that all ranks share, and the memory that each GPU must have."""

import pytest

from cloudgpu.recipe.batch import samples_per_step
from cloudgpu.recipe.loading.loader import validate_recipe
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.units import SizeGib


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
def test_the_batch_that_a_recipe_means(batch, params, meant):
    assert samples_per_step(Recipe.model_validate(values(batch, params))) == meant


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ("{batsh}", 'launch.global_batch: unknown placeholder {batsh}; did you mean "batch"?'),
        ("{batch}/2", "launch.global_batch: expected a whole number, got {batch}/2"),
        ("{outputs}", "launch.global_batch: unknown placeholder {outputs}"),
    ],
)
def test_a_batch_that_is_no_number_is_a_problem_of_the_recipe(tmp_path, batch, said):
    (tmp_path / "train.py").touch()
    _, problems = validate_recipe(values(batch, {"batch": 64}), tmp_path)
    assert [problem.text[: len(said)] for problem in problems] == [said]


def test_a_batch_below_one_is_refused(tmp_path):
    recipe, problems = validate_recipe(values(0), tmp_path)
    assert recipe is None
    assert any("global_batch" in problem.text for problem in problems)


def test_the_memory_of_a_gpu_has_a_unit():
    one = values(None)
    one["resources"]["gpu_memory"] = "24GiB"
    assert Recipe.model_validate(one).resources.gpu_memory == SizeGib(24)
