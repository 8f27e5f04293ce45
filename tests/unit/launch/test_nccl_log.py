"""The variables that make NCCL write down its network, and the settings of a recipe that replace them."""

from dataclasses import replace

import pytest

from cloudgpu.launch.inventory import Inventory
from cloudgpu.launch.launchers import launch
from tests.unit.launch.test_every_launcher import CONTAINED, HERE, recipe
from tests.unit.launch.test_torchrun import nodes

SET = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,NET",
    "NCCL_DEBUG_FILE": f"{HERE.run_dir}/nccl/%h-%p.log",
}
LAUNCHERS = ("mpirun", "deepspeed", "kvstore", "tf-config", "each-node", "head-only", "torchrun")


def environments(launcher: str, inventory: Inventory, env: dict, ctx=HERE) -> list[dict]:
    gang = launch(recipe(launcher, environment={"env": env}), inventory, ctx)
    return [{name: rank.env.get(name) for name in SET} for node in gang for rank in node.ranks]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_nccl_of_every_rank_writes_its_network_to_a_file(launcher: str) -> None:
    found = environments(launcher, nodes(), {})
    assert found
    assert all(env == SET for env in found)


def test_mpirun_hands_the_variables_to_every_rank() -> None:
    gang = launch(recipe("mpirun", environment={"env": {}}), nodes(), HERE)
    argv = gang[0].ranks[0].argv
    assert {argv[at + 1] for at, word in enumerate(argv) if word == "-x"} >= set(SET)


def test_nccl_in_a_container_writes_where_the_agent_can_read() -> None:
    (first, *_) = environments("torchrun", nodes(), {}, CONTAINED)
    assert first["NCCL_DEBUG_FILE"] == "/.cloudgpu/nccl/%h-%p.log"


@pytest.mark.parametrize("name", SET)
def test_setting_of_the_recipe_replaces_all_of_them(name: str) -> None:
    expected = dict.fromkeys(SET) | {name: "WARN"}
    assert all(env == expected for env in environments("torchrun", nodes(), {name: "WARN"}))


def test_one_node_and_nodes_without_gpus_have_no_network_to_watch() -> None:
    cpu = nodes()
    cpu = replace(cpu, nodes=tuple(replace(node, gpus=0) for node in cpu.nodes))
    assert environments("torchrun", nodes(1), {}) == [dict.fromkeys(SET)] * 2
    assert environments("each-node", cpu, {}) == [dict.fromkeys(SET)] * 2
