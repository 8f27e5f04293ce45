"""Launcher-specific fields and the default number of ranks."""

from pathlib import Path

import pytest

from cloudgpu.recipe.launch_sections import kvstore_kind
from cloudgpu.recipe.loader import validate_recipe
from cloudgpu.recipe.schema import Recipe


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
def test_incompatible_launch_fields_are_reported(launch: dict, said: str) -> None:
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
def test_default_ranks_per_node_depends_on_the_launcher(launch: dict, ranks: int | str) -> None:
    recipe, problems = read(**launch)
    assert recipe is not None, problems
    assert recipe.launch.ranks == ranks


def test_kvstore_kind_can_be_a_parameter() -> None:
    recipe, problems = read({"store": "dist_async"}, **{"with": "kvstore", "kvstore": "{store}"})
    assert recipe is not None, problems
    assert kvstore_kind(recipe.launch, recipe.params) == "dist_async"
    _, problems = read({"store": "distant"}, **{"with": "kvstore", "kvstore": "{store}"})
    assert "unknown kind distant" in problems[0]


def test_parameter_named_like_a_built_in_placeholder_is_rejected() -> None:
    for name in ("node_rank", "hostfile", "master_port"):
        _, problems = read({name: 1}, **{"with": "torchrun"})
        assert f"{{{name}}} is a built-in placeholder" in problems[0]


SCRIPT = 'for epoch in 1 2; do\n  python train.py --lr "$CLOUDGPU_PARAM_LR" > log.$epoch\ndone\n'


def test_a_script_replaces_the_command_and_is_kept_as_written() -> None:
    recipe, problems = read({"lr": 0.1}, **{"with": "each-node", "command": "", "run": SCRIPT})
    assert problems == []
    assert recipe is not None
    assert recipe.launch.run == recipe.launch.text == SCRIPT


@pytest.mark.parametrize(
    ("launch", "said"),
    [
        ({"command": "a", "run": "b"}, "launch.run: launch.command is already set; set either command or run"),
        ({"command": ""}, "launch.command: expected a command, got nothing; write one, or a script in launch.run"),
        ({"command": "", "run": " \n"}, "launch.run: expected a shell script, got nothing"),
        (
            {"command": "", "run": "train {lr} ${lr} {a,b} {{lr}}"},
            'launch.run: placeholders are not substituted in a script: write "$CLOUDGPU_PARAM_LR" for {lr}',
        ),
        (
            {"command": "", "run": "train {outputs}"},
            'launch.run: placeholders are not substituted in a script: write "$CLOUDGPU_OUTPUTS" for {outputs}',
        ),
    ],
)
def test_unusable_scripts_are_reported(launch: dict, said: str) -> None:
    _, problems = read({"lr": 0.1}, **{"with": "each-node", **launch})
    assert problems == [said]


def test_parameters_that_share_a_variable_are_reported() -> None:
    _, problems = read({"max-lr": 1, "max_lr": 2}, **{"with": "each-node", "command": "", "run": "true"})
    assert problems == [
        "launch.run: max-lr and max_lr would both be CLOUDGPU_PARAM_MAX_LR in the script; rename one of them"
    ]


def checked(**sections) -> list[str]:
    values = {
        "schema": 1,
        "name": "x",
        "resources": {"gpu": "V100:8"},
        "launch": {"with": "torchrun", "command": "train.py"},
        **sections,
    }
    return [problem.text for problem in validate_recipe(values, Path())[1]]


def test_setup_has_no_placeholders_and_may_have_a_container() -> None:
    assert checked(setup="make -C src\n./build.sh ${lr} {a,b}\n", params={"lr": 1}) == []
    said = "{lr} is not substituted: setup is the same for all runs; set a variable in environment.env"
    assert checked(setup="make {lr}", params={"lr": 1}) == [f"setup: {said}"]
    assert checked(rehearsal={"setup": "make {lr}"}, params={"lr": 1}) == [f"rehearsal.setup: {said}"]
    assert checked(setup="make", environment={"container": {"image": "a:1"}}) == []
