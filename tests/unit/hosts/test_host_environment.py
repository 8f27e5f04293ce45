"""Environment variables of ranks on self-managed hosts."""

from dataclasses import replace

from cloudgpu.launch.environment import network_environment, rank_environment
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.launch.ranks import LaunchInputs
from cloudgpu.recipe.schema import Recipe

NODE = Node(
    0, "red@x", "10.0.0.1", 22, "ann", ("SHA256:a",), "10.0.0.1", "V100:4", "red", "V100", 4,
    simulated=False, devices=(1, 2, 4, 7), interface="ib0", base=".cloudgpu/hosts/x-0123abcd",
)  # fmt: skip
RECIPE = Recipe.model_validate(
    {
        "schema": 1,
        "name": "tiny",
        "resources": {"gpu": "V100:4", "nodes": 2},
        "launch": {"with": "torchrun", "command": "train.py"},
        "environment": {"env": {"CUDA_VISIBLE_DEVICES": "0", "NCCL_SOCKET_IFNAME": "eth7"}},
    }
)
CONTEXT = LaunchInputs("tiny-1", "/w", "python3", 23456, {}, "/w/outputs", run_dir="/r")
PAIR = Inventory("x", (NODE, replace(NODE, index=1)))


def test_ranks_see_only_gpus_assigned_to_cluster():
    assert rank_environment(RECIPE, PAIR, NODE, CONTEXT, {}, 4)["CUDA_VISIBLE_DEVICES"] == "1,2,4,7"
    whole = replace(NODE, devices=())
    assert rank_environment(RECIPE, PAIR, whole, CONTEXT, {}, 4)["CUDA_VISIBLE_DEVICES"] == "0"


def test_inventory_network_interface_is_default():
    assert network_environment(RECIPE, NODE, 2) == {"NCCL_SOCKET_IFNAME": "=ib0", "GLOO_SOCKET_IFNAME": "ib0"}
    assert network_environment(RECIPE, NODE, 1) == {}
    environment = rank_environment(RECIPE, PAIR, NODE, CONTEXT, {}, 4)
    assert (environment["NCCL_SOCKET_IFNAME"], environment["GLOO_SOCKET_IFNAME"]) == ("eth7", "ib0")


def test_inventory_round_trips_through_json():
    assert Inventory.from_json(PAIR.as_json()) == PAIR
    older = {
        name: value for name, value in PAIR.as_json()["nodes"][0].items() if name not in ("devices", "base", "key")
    }
    assert Inventory.from_json({"cluster": "x", "nodes": [older]}).nodes[0].devices == ()
