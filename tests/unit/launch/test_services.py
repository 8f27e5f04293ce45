"""The service launcher and side services: commands, environment and nodes."""

from dataclasses import replace

from cloudgpu.launch.inventory import Inventory, Node, default_local_port, loopback_address
from cloudgpu.launch.launchers import launch, with_services
from cloudgpu.launch.ranks import LaunchInputs
from cloudgpu.recipe.schema import Recipe

NODE = Node(0, "i-0", "203.0.113.1", 22, "ubuntu", ("SHA256:x",), "10.0.0.2", "p3dn.24xlarge", "us-east-1c", "V100", 2,
            simulated=False)  # fmt: skip
REAL = Inventory("c", (NODE, replace(NODE, index=1, instance_id="i-1", private_address="10.0.0.3")))
SHARED = replace(NODE, private_address="127.9.8.7", simulated=True)
CTX = LaunchInputs("web-7f3a", "/w", "/envs/a/bin/python", 23456, {}, "/w/outputs", run_dir="/r")
BOARD = {
    "name": "board",
    "command": "-m tensorboard.main --host {service.address} --port {service.port} --logdir {outputs}/{lr}",
    "port": 6006,
}


def recipe(**launched) -> Recipe:
    sections = {"schema": 1, "name": "web", "resources": {"gpu": "V100:2", "nodes": 2}, "params": {"lr": 0.1}}
    return Recipe.model_validate({**sections, "launch": launched})


def test_service_runs_on_head_node_only_with_address_and_port():
    found = recipe(**{"with": "service"}, command="jupyter --ip={service.address} --port={service.port}",
                   service={"port": 8888})  # fmt: skip
    head, other = launch(found, REAL, CTX)
    assert [rank.argv for rank in head.ranks] == [("jupyter", "--ip=127.0.0.1", "--port=8888")]
    assert other.ranks == ()
    shared, *_ = launch(found, Inventory("c", (SHARED,)), CTX)
    assert shared.ranks[0].argv == ("jupyter", "--ip=127.9.8.7", "--port=8888")


def test_side_services_have_ranks_after_workers_and_see_no_gpus():
    found = recipe(**{"with": "torchrun"}, command="train.py", beside=[BOARD, {**BOARD, "name": "two", "port": 6007}])
    gang = with_services(launch(found, REAL, CTX), found, REAL, CTX)
    assert [[(rank.rank, rank.role, rank.decides) for rank in node.ranks] for node in gang] == [
        [(0, "", True), (1, "", True), (4, "board", False), (5, "two", False)],
        [(2, "", True), (3, "", True)],
    ]
    board = gang[0].ranks[2]
    assert board.argv == (
        *("/envs/a/bin/python", "-m", "tensorboard.main", "--host", "127.0.0.1", "--port", "6006"),
        *("--logdir", "/w/outputs/0.1"),
    )
    assert board.env["CUDA_VISIBLE_DEVICES"] == ""
    assert "RANK" not in board.env
    assert with_services(gang, recipe(**{"with": "torchrun"}, command="train.py"), REAL, CTX) == gang


def test_side_services_see_no_gpus_on_shared_host():
    found = recipe(**{"with": "torchrun"}, command="train.py", beside=[BOARD])
    shared = replace(REAL, nodes=(replace(REAL.nodes[0], devices=(1, 2)), *REAL.nodes[1:]))
    ranks = with_services(launch(found, shared, CTX), found, shared, CTX)[0].ranks
    assert [rank.env["CUDA_VISIBLE_DEVICES"] for rank in ranks if rank.decides] == ["1,2", "1,2"]
    assert [rank.env["CUDA_VISIBLE_DEVICES"] for rank in ranks if not rank.decides] == [""]


def test_local_ports_are_shifted_for_nodes_on_this_machine():
    assert (loopback_address(NODE), default_local_port(NODE, 8888)) == ("127.0.0.1", 8888)
    alone = replace(NODE, private_address="127.0.0.1")
    assert (loopback_address(alone), default_local_port(alone, 8888)) == ("127.0.0.1", 18888)
    assert (loopback_address(SHARED), default_local_port(SHARED, 8888), default_local_port(SHARED, 60000)) == (
        "127.9.8.7",
        18888,
        50000,
    )
