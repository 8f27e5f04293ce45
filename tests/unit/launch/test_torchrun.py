import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.errors import RecipeError, UsageError
from cloudgpu.launch.environment import gang_port, master_port
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.launch.launchers import launch, launcher, torchrun
from cloudgpu.launch.ranks import LaunchInputs
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.text_rules import LAUNCHER_VARIABLES

RESERVED = LAUNCHER_VARIABLES["torchrun"]
GOLDEN = Path(__file__).parent / "golden"

CTX = LaunchInputs(
    run_id="digits-7f3a",
    workdir="/home/ubuntu/work",
    interpreter="/envs/abc/bin/python",
    master_port=23456,
    data={"digits": "/data/digits"},
    outputs="/home/ubuntu/work/outputs",
    checkpoint="/home/ubuntu/work/ckpt",
)


def recipe(
    command: str = "train.py --data {data.digits} --lr {lr} --out {outputs} --name '{run} run'", **more
) -> Recipe:
    sections = {
        "schema": 1,
        "name": "digits",
        "resources": {"gpu": "V100:2", "nodes": 2},
        "data": [{"name": "digits", "from": "s3://bucket/digits/", "to": "/data/digits"}],
        "params": {"lr": 0.1, "amp": True},
        "launch": {"with": "torchrun", "command": command, "ranks_per_node": more.pop("ranks_per_node", "gpus")},
        "checkpoint": {"path": "ckpt"},
        **more,
    }
    return Recipe.model_validate(sections)


def nodes(count: int = 2, *, simulated: bool = False, **more) -> Inventory:
    made = tuple(
        Node(
            index=i,
            instance_id=f"i-{i}",
            address=f"203.0.113.{i + 1}",
            port=22,
            user="ubuntu",
            host_keys=("SHA256:x",),
            private_address=f"127.0.0.{i + 2}" if simulated else f"10.0.0.{i + 2}",
            instance_type="p3dn.24xlarge",
            zone="us-east-1c",
            gpu="V100",
            gpus=2,
            simulated=simulated,
        )
        for i in range(count)
    )
    return Inventory("c", tuple(replace(node, **more) for node in made))


@pytest.mark.parametrize("name", ["real", "simulated"])
def test_torchrun_output_matches_golden_file(name: str) -> None:
    env = {"environment": {"env": {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "6"}}} if name == "real" else {}
    launched = launch(recipe(**env), nodes(simulated=name == "simulated"), CTX)
    text = json.dumps([asdict(node) for node in launched], indent=1, sort_keys=True) + "\n"
    expected = GOLDEN / f"torchrun_{name}.json"
    assert text == expected.read_text(), f"write the new text to {expected} if it is meant"


def env_of(launched, rank: int = 0):
    return next(one.env for node in launched for one in node.ranks if one.rank == rank)


def test_command_is_split_and_python_scripts_use_the_interpreter() -> None:
    def argv(command: str) -> tuple[str, ...]:
        return torchrun(recipe(command), nodes(), CTX)[0].ranks[0].argv

    assert argv("train.py {lr}") == (CTX.interpreter, "train.py", "0.1")
    assert argv("-m pkg.train --amp {amp}") == (CTX.interpreter, "-m", "pkg.train", "--amp", "true")
    assert argv("./train.sh x.py") == ("./train.sh", "x.py")
    with pytest.raises(RecipeError, match="lrr"):
        argv("train.py {lrr}")


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_rendezvous_variables_cannot_be_set_by_recipe(name: str) -> None:
    with pytest.raises(RecipeError, match=name) as caught:
        torchrun(recipe(environment={"env": {name: "1"}}), nodes(), CTX)
    assert caught.value.exit_code == 2
    with pytest.raises(RecipeError, match=name):
        torchrun(recipe(environment={"secrets": [name]}), nodes(), CTX)


def test_rank_env_contains_only_reserved_variables_and_defaults() -> None:
    env = env_of(torchrun(recipe(), nodes(), CTX))
    assert env.keys() >= RESERVED
    assert env.keys() - RESERVED <= {"OMP_NUM_THREADS", "PYTHONUNBUFFERED", "FI_EFA_USE_HUGE_PAGE"}


def test_recipe_env_overrides_defaults() -> None:
    mine = {"OMP_NUM_THREADS": "9", "PYTHONUNBUFFERED": "", "FI_EFA_USE_HUGE_PAGE": "1"}
    env = env_of(torchrun(recipe(environment={"env": mine}), nodes(), CTX))
    assert mine.items() <= env.items()


def test_omp_threads_default_matches_torchrun() -> None:
    assert "OMP_NUM_THREADS" not in env_of(torchrun(recipe(ranks_per_node=1), nodes(), CTX))
    assert env_of(torchrun(recipe(ranks_per_node=1), nodes(simulated=True), CTX))["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("instance_type", "network", "expect"),
    [
        ("p3dn.24xlarge", "auto", {"FI_EFA_USE_HUGE_PAGE": "0"}),
        ("p3dn.24xlarge", "tcp", {"NCCL_SOCKET_IFNAME": "^lo,docker,veth", "NCCL_NSOCKS_PERTHREAD": "4"}),
        ("p4d.24xlarge", "auto", {}),
        ("g4dn.xlarge", "auto", {"NCCL_SOCKET_IFNAME": "^lo,docker,veth", "NCCL_SOCKET_NTHREADS": "4"}),
        ("g5.48xlarge", "efa", {"NCCL_SHM_USE_CUDA_MEMCPY": "1"}),
    ],
)
def test_network_settings_match_instance_type_and_network_mode(instance_type: str, network: str, expect: dict) -> None:
    made = recipe(resources={"gpu": "V100:2", "nodes": 2, "network": network})
    env = env_of(torchrun(made, nodes(instance_type=instance_type), CTX))
    assert expect.items() <= env.items()
    assert ("NCCL_SOCKET_IFNAME" in env) == ("NCCL_SOCKET_IFNAME" in expect)


def test_single_node_gets_no_network_settings() -> None:
    env = env_of(torchrun(recipe(), nodes(1, instance_type="g4dn.12xlarge"), CTX))
    assert not any(key.startswith(("NCCL_", "FI_", "GLOO_")) for key in env)


def test_namespaced_simulated_nodes_do_not_pin_gloo_interface() -> None:
    env = env_of(torchrun(recipe(), nodes(simulated=True, private_address="10.9.0.2"), CTX))
    assert "GLOO_SOCKET_IFNAME" not in env


def test_nodes_without_gpus_require_explicit_ranks_per_node() -> None:
    with pytest.raises(UsageError, match="has no GPU"):
        torchrun(recipe(), nodes(gpus=0), CTX)


def test_unknown_launcher_error_suggests_nearest_name() -> None:
    with pytest.raises(UsageError, match='did you mean "torchrun"'):
        launcher("torchrum")


@given(st.integers(1, 6), st.integers(1, 5))
def test_ranks_are_numbered_consecutively_across_nodes(count: int, per_node: int) -> None:
    launched = torchrun(recipe(ranks_per_node=per_node), nodes(count), CTX)
    ranks = [rank for node in launched for rank in node.ranks]
    assert [rank.rank for rank in ranks] == list(range(count * per_node))
    for node in launched:
        for rank in node.ranks:
            assert rank.env["RANK"] == rank.env["CLOUDGPU_RANK"] == str(rank.rank)
            assert rank.env["LOCAL_RANK"] == str(rank.local_rank)
            assert rank.env["GROUP_RANK"] == str(node.node_index)
            assert rank.env["WORLD_SIZE"] == str(count * per_node)
            assert rank.env["CLOUDGPU_NODE_IPS"].count("\n") == count - 1


@given(st.text(), st.integers(0, 50))
def test_ports_are_deterministic_and_within_reserved_ranges(run_id: str, attempt: int) -> None:
    assert 20000 <= master_port(run_id, attempt) < 26000 <= gang_port(run_id, attempt) < 32000
    assert master_port(run_id, attempt) == master_port(run_id, attempt)


def test_ports_differ_between_runs_and_attempts() -> None:
    assert len({master_port(f"run-{i}") for i in range(100)}) > 95
    assert len({gang_port("run", attempt) for attempt in range(20)}) > 17
