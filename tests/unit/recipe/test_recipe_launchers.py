"""Fields that belong to some launchers only, and numbers of ranks where nothing is said."""

from pathlib import Path

import pytest

from cloudgpu.recipe.loading.loader import validate_recipe
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.sections.launch import kvstore_kind


def read(params: dict | None = None, **launch) -> tuple[Recipe | None, list[str]]:
    values = {
        "schema": 1,
        "name": "x",
        "resources": {"gpu": "V100:8", "nodes": 2},
        "params": params or {},
        "launch": {"command": "train.py", **launch},
    }
    recipe, problems = validate_recipe(values, Path())
    return recipe, [problem.text for problem in problems]


@pytest.mark.parametrize(
    ("launch", "said"),
    [
        ({"with": "each-node", "ranks_per_node": 4}, "each-node starts one process per node; expected 1, got 4"),
        ({"with": "kvstore"}, "required by the kvstore launcher; expected one of device, local, nccl, dist_async"),
        ({"with": "kvstore", "kvstore": "dist_sink"}, 'unknown kind dist_sink; did you mean "dist_sync"?'),
        ({"with": "kvstore", "kvstore": "{kind}"}, "unknown placeholder {kind}"),
        ({"with": "torchrun", "kvstore": "local"}, "applies only to the kvstore launcher, not to torchrun"),
        (
            {"with": "mpirun", "servers_per_node": 1},
            "applies only to the kvstore and tf-config launchers, not to mpirun",
        ),
        ({"with": "kvstore", "kvstore": "local", "servers_per_node": 0}, "expected 1 or more"),
        ({"with": "torchrun", "command": "x {hostfile}"}, "unknown placeholder {hostfile}"),
    ],
)
def test_what_does_not_go_together_is_said(launch: dict, said: str) -> None:
    _, problems = read(**launch)
    assert len(problems) == 1
    assert said in problems[0]


@pytest.mark.parametrize(
    ("launch", "ranks"),
    [
        ({"with": "torchrun"}, "gpus"),
        ({"with": "mpirun"}, "gpus"),
        ({"with": "mpirun", "ranks_per_node": 2}, 2),
        ({"with": "kvstore", "kvstore": "nccl"}, 1),
        ({"with": "kvstore", "kvstore": "dist_sync", "ranks_per_node": "gpus"}, "gpus"),
        ({"with": "tf-config", "servers_per_node": 2}, 1),
        ({"with": "each-node", "command": "x {node_rank} {num_nodes} {head_address} {master_port}"}, 1),
        ({"with": "head-only"}, 1),
    ],
)
def test_ranks_where_nothing_is_said(launch: dict, ranks: int | str) -> None:
    recipe, problems = read(**launch)
    assert recipe is not None, problems
    assert recipe.launch.ranks == ranks


def test_the_kind_may_be_a_parameter_that_a_matrix_varies() -> None:
    recipe, problems = read({"store": "dist_async"}, **{"with": "kvstore", "kvstore": "{store}"})
    assert recipe is not None, problems
    assert kvstore_kind(recipe.launch, recipe.params) == "dist_async"
    _, problems = read({"store": "distant"}, **{"with": "kvstore", "kvstore": "{store}"})
    assert "unknown kind distant" in problems[0]


def test_a_parameter_may_not_be_called_like_what_the_launcher_fills_in() -> None:
    for name in ("node_rank", "hostfile", "master_port"):
        _, problems = read({name: 1}, **{"with": "torchrun"})
        assert f"{{{name}}} is a built-in placeholder" in problems[0]
