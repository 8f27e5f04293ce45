"""The complete `docker run` line, compared with golden text."""

import shlex
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from cloudgpu.launch.containers import DockerEngine
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.launch.ranks import NodeFile, NodeLaunch, RankLaunch
from cloudgpu.node.agent.transport import PLUGIN_SCRIPT
from cloudgpu.node.containers import BindMount
from cloudgpu.recipe.schema import Recipe
from cloudgpu.run.containers import NodeImage, NodeRunPaths, container_start_fields
from cloudgpu.run.job import Job

IMAGE = NodeImage(
    "nvcr.io/nvidia/pytorch@sha256:0", "sha256:1", "sha256:0", ("/opt/nvidia/nvidia_entrypoint.sh",),
    DockerEngine("/usr/bin/docker", "unix:///var/run/docker.sock"),
    devices=("/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"), huge_pages=True,
)  # fmt: skip
RUN = "/home/ubuntu/.cloudgpu/runs/plain-abc"
PLACE = NodeRunPaths(RUN, f"{RUN}/work", {"imagenet": "/data/imagenet"}, {"sets": "/sets", "own": "/own,dir"})
LAUNCH = NodeLaunch(
    1,
    (RankLaunch(8, 0, ("python3", "train.py"), {}), RankLaunch(9, 1, ("python3", "train.py"), {})),
    (NodeFile("launch/hostfile", ""), NodeFile("launch/rsh", "")),
)
PLAIN = """\
run
--detach
--rm
--init
--pull=never
--name=cloudgpu-plain-abc-1
--label=cloudgpu.run=plain-abc
--label=cloudgpu.cluster=demo
--network=host
--ipc=host
--ulimit=memlock=-1
--ulimit=stack=67108864
--gpus=all
--device=/dev/infiniband/rdma_cm
--device=/dev/infiniband/uverbs0
--mount=type=bind,source=/home/ubuntu/.cloudgpu/runs/plain-abc/container,target=/.cloudgpu
--mount=type=bind,source=/home/ubuntu/.cloudgpu/runs/plain-abc/work,target=/home/ubuntu/.cloudgpu/runs/plain-abc/work
--mount=type=bind,source=/home/ubuntu/.cloudgpu/runs/plain-abc/launch,target=/home/ubuntu/.cloudgpu/runs/plain-abc/launch,readonly
--mount=type=bind,source=/data/imagenet,target=/data/imagenet,readonly
--mount=type=bind,source=/sets,target=/sets,readonly
--mount=type=bind,"source=/own,dir","target=/own,dir"
--mount=type=bind,source=/dev/hugepages,target=/dev/hugepages
--entrypoint=sleep
nvcr.io/nvidia/pytorch@sha256:0
infinity
"""


RDMA = {word for word in PLAIN.split() if "infiniband" in word or "hugepages" in word}


def node(**more):
    given = {"instance_type": "p4d.24xlarge", "gpu": "A100", "gpus": 8, "simulated": False, **more}
    return Node(1, "i-1", "192.0.2.1", 22, "ubuntu", ("SHA256:x",), "10.0.0.1", zone="z", **given)


def order(where, image=IMAGE, **container):
    network = container.pop("network", "auto")
    recipe = Recipe.model_validate(
        {
            "schema": 1,
            "name": "plain",
            "resources": {"instance_type": "p4d.24xlarge", "nodes": 2, "network": network},
            "environment": {"container": {"image": "nvcr.io/nvidia/pytorch:24.12-py3", **container}},
            "storage": [{"name": "sets", "to": "/sets", "mode": "ro"}, {"name": "own", "to": "/own,dir"}],
            "launch": {"with": "torchrun", "command": "train.py"},
        }
    )
    job = Job("plain-abc", recipe, Inventory("demo", (where, where)), "token")
    return container_start_fields(job, recipe.environment.container, where, image, PLACE, LAUNCH)


def line(*args, **more):
    return order(*args, **more)["container"]["run"]


def test_docker_run_line_with_gpus_and_efa_matches_golden_text():
    assert "\n".join(line(node())) + "\n" == PLAIN


@pytest.mark.parametrize(
    ("said", "gone", "come"),
    [
        ({"memlock": None}, {"--ulimit=memlock=-1"}, set()),
        ({"memlock": "64GiB"}, {"--ulimit=memlock=-1"}, {"--ulimit=memlock=68719476736"}),
        ({"stack_mib": None}, {"--ulimit=stack=67108864"}, set()),
        ({"shm": "16GiB"}, {"--ipc=host"}, {"--shm-size=16g"}),
        ({"user": "1000:1000"}, set(), {"--user=1000:1000"}),
        ({"flags": ["--cap-add=SYS_PTRACE", "--privileged"]}, set(), {"--cap-add=SYS_PTRACE", "--privileged"}),
        ({"network": "tcp"}, RDMA, set()),
    ],
)  # fmt: skip
def test_container_setting_changes_only_its_own_docker_flags(said, gone, come):
    assert (set(PLAIN.split()) - set(line(node(), **said)), set(line(node(), **said)) - set(PLAIN.split())) == (
        gone,
        come,
    )


@pytest.mark.parametrize(
    ("where", "image", "words"),
    [
        (node(simulated=True), {}, set()),
        (node(gpus=0), {}, set()),
        (node(devices=(2, 3)), {}, {'--gpus="device=2,3"'}),
        (node(), {"gpu_runtime": True}, {"--runtime=nvidia", "--env=NVIDIA_VISIBLE_DEVICES=all"}),
        (node(devices=(2, 3)), {"gpu_runtime": True}, {"--runtime=nvidia", "--env=NVIDIA_VISIBLE_DEVICES=2,3"}),
    ],
    ids=["simulated", "none", "some", "legacy", "legacy-some"],
)
def test_gpu_flags_match_the_node_and_the_runtime(where, image, words):
    told = order(where, replace(IMAGE, **image))["container"]
    assert {word for word in told["run"] if "gpus" in word or ("nvidia" in word.lower() and "@" not in word)} == words
    assert told["gpus"] is bool(words)


@pytest.mark.parametrize(
    ("where", "network", "checked"),
    [
        (node(efa=4), "auto", True),
        (node(efa=4), "efa", True),
        (node(efa=4), "tcp", False),
        (node(), "auto", False),
        (node(efa=4, gpus=0), "auto", False),
    ],
    ids=["auto", "efa", "tcp", "no-efa", "no-gpu"],
)
def test_plugin_is_looked_for_through_the_entry_point_where_nccl_would_use_efa(where, network, checked):
    told = order(where, network=network)["container"].get("plugin_check")
    head = ["docker", "--host", "unix:///run/docker.sock", "exec", "--workdir"]
    assert (told is not None) == checked
    if told is not None:
        assert told == [*told[: len(head)], f"{RUN}/work", "--env-file", f"{RUN}/net-plugin.names",
                        "cloudgpu-plain-abc-1", *IMAGE.entrypoint, "sh", "-c", PLUGIN_SCRIPT]  # fmt: skip


def test_each_rank_is_executed_through_the_image_entry_point():
    first, second = order(node())["ranks"]
    assert (first["inside"], first["program"], second["inside"]) == ("rank-8", "python3", "rank-9")
    head, tail = first["argv"][:9], first["argv"][12:]
    assert shlex.join(head) == (
        f"/usr/bin/docker --host unix:///var/run/docker.sock exec --workdir {RUN}/work "
        f"--env-file {RUN}/rank-8.names cloudgpu-plain-abc-1"
    )
    assert tail == ["cloudgpu", "/.cloudgpu/rank-8.pid", "/opt/nvidia/nvidia_entrypoint.sh", "python3", "train.py"]


def test_mount_path_with_quote_and_comma_is_escaped():
    assert BindMount('/a,"b').option() == 'type=bind,"source=/a,""b","target=/a,""b"'
    assert (
        BindMount("/a", str(PurePosixPath("/b")), read_only=True).option() == "type=bind,source=/a,target=/b,readonly"
    )


def test_gdrcopy_device_is_passed_with_and_without_rdma():
    device = "--device=/dev/gdrdrv"
    with_gdrcopy = replace(IMAGE, devices=(*IMAGE.devices, "/dev/gdrdrv"))
    for network, rdma in (("auto", True), ("tcp", False)):
        words = line(node(), with_gdrcopy, network=network)
        assert (device in words, "--device=/dev/infiniband/uverbs0" in words) == (True, rdma)
    assert device not in line(node())
