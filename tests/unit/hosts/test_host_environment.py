"""What ranks on a host of one's own find in their environment."""

from dataclasses import replace

from cloudgpu.launch.environment import rank_environment
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.launch.network import network_environment
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
PAIR = Inventory("x", (NODE, replace(NODE, index=1)))


def test_ranks_see_the_gpus_that_the_cluster_has_whatever_a_recipe_says():
    assert rank_environment(RECIPE, PAIR, NODE, {}, 4)["CUDA_VISIBLE_DEVICES"] == "1,2,4,7"
    whole = replace(NODE, devices=())
    assert rank_environment(RECIPE, PAIR, whole, {}, 4)["CUDA_VISIBLE_DEVICES"] == "0"


def test_the_interface_of_the_inventory_is_a_default():
    assert network_environment(RECIPE, NODE, 2) == {"NCCL_SOCKET_IFNAME": "=ib0", "GLOO_SOCKET_IFNAME": "ib0"}
    assert network_environment(RECIPE, NODE, 1) == {}
    environment = rank_environment(RECIPE, PAIR, NODE, {}, 4)
    assert (environment["NCCL_SOCKET_IFNAME"], environment["GLOO_SOCKET_IFNAME"]) == ("eth7", "ib0")


def test_an_inventory_comes_back_as_it_was_written():
    assert Inventory.from_json(PAIR.as_json()) == PAIR
    older = {
        name: value for name, value in PAIR.as_json()["nodes"][0].items() if name not in ("devices", "base", "key")
    }
    assert Inventory.from_json({"cluster": "x", "nodes": [older]}).nodes[0].devices == ()
