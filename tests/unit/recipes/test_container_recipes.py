"""What the container recipes start on real nodes: the `docker run` line, the rank commands and their files.

Also which metrics are read from their logs: `excerpts/` holds real output of each framework and its source.
"""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from cloudgpu.catalog.catalog import load
from cloudgpu.catalog.compatibility import software
from cloudgpu.launch.containers import DockerEngine
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.launch.launchers import launch, with_services
from cloudgpu.launch.ranks import HOSTFILE, LaunchInputs, NodeLaunch
from cloudgpu.recipe import loader
from cloudgpu.recipe.schema import Recipe
from cloudgpu.run.containers import NodeImage, NodeRunPaths, container_start_fields, exec_prefixes
from cloudgpu.run.job import Job
from cloudgpu.run.metrics import Metrics

RECIPES = Path(__file__).parents[3] / "recipes"
HERE = Path(__file__).parent
CONTAINED = (
    *("caffe2", "cntk", "digits", "horovod", "mxnet-imagenet"),
    *("nvcaffe", "tensorflow-resnet50", "theano", "torch7"),
)
HOME = "/home/ubuntu"
EVERYWHERE = ("CLOUDGPU_", "MASTER_", "PYTHONUNBUFFERED", "OMP_")
"""What every rank of every recipe finds, and the launchers' own tests have."""
NODE = Node(0, "i-0", "203.0.113.1", 22, "ubuntu", ("SHA256:x",), "10.0.0.2", "p3dn.24xlarge", "us-east-1c", "V100", 8,
            simulated=False)  # fmt: skip


def recipe(name: str) -> Recipe:
    return loader.load(RECIPES / name / "recipe.yaml").recipe


def started(name: str) -> str:
    """Return everything that a recipe starts, as text."""
    wanted = recipe(name)
    count = wanted.resources.nodes
    nodes = [
        replace(NODE, index=one, instance_id=f"i-{one}", private_address=f"10.0.0.{one + 2}") for one in range(count)
    ]
    inventory = Inventory("c", tuple(nodes))
    job = Job(f"{name}-7f3a", wanted, inventory, "token")
    place = NodeRunPaths(job.run_dir(HOME), job.workdir(HOME), {}, {})
    repository = wanted.environment.container.image.partition(":")[0]
    image = NodeImage(f"{repository}@sha256:{'0' * 64}", "id", "d", (), DockerEngine())
    enter = exec_prefixes(job.run_id, dict.fromkeys(range(count), image), place.workdir)
    ctx = LaunchInputs(job.run_id, place.workdir, "python3", 23456, {}, f"{place.workdir}/outputs",
                        run_dir=place.run_dir, enter=enter)  # fmt: skip
    gang = with_services(launch(wanted, inventory, ctx), wanted, inventory, ctx)
    return "\n".join(of_node(job, node, image, place, gang[node.index]) for node in nodes)


def of_node(job: Job, node: Node, image: NodeImage, place: NodeRunPaths, gang: NodeLaunch) -> str:
    told = container_start_fields(job, job.recipe.environment.container, node, image, place, gang)
    lines = [f"node {node.index}", shlex.join((*told["container"]["client"], *told["container"]["run"]))]
    for file in gang.files:
        # The launchers' own tests have what is in the others.
        content = file.content.splitlines() if file.path == HOSTFILE else []
        lines += ["", f"file {file.path} {file.mode:o}", *content]
    for rank, asked in zip(gang.ranks, told["ranks"], strict=True):
        lines += ["", f"rank {rank.rank} {rank.role}".rstrip(), shlex.join(asked["argv"])]
        lines += [f"  {name}={value!r}" for name, value in sorted(rank.env.items()) if not name.startswith(EVERYWHERE)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", CONTAINED)
def test_container_launch_matches_golden_file(name: str) -> None:
    expected = HERE / "golden" / f"{name}.txt"
    assert started(name) == expected.read_text(), f"write the new text to {expected} if it is meant"


@pytest.mark.parametrize("name", CONTAINED)
def test_container_image_is_known_to_support_v100(name: str) -> None:
    image = recipe(name).environment.container.image
    known = {one.image: one for one in software().images}
    volta = load().gpus["V100"]
    if image in known:
        assert "Volta" in known[image].last_for
    else:
        month = image.partition(":")[2][:5]
        assert volta.first_ngc <= month <= volta.last_ngc
        assert month in software().ngc


@pytest.mark.parametrize("name", sorted(set(CONTAINED) - {"digits"}))
def test_metrics_are_parsed_from_real_framework_logs(name: str) -> None:
    head, _, lines = (HERE / "excerpts" / f"{name}.txt").read_text().partition("\n\n")
    source, *reads = head.splitlines()
    assert source.startswith("from: ")
    expected = {metric: json.loads(f"[{values}]") for metric, _, values in (line.partition(" = ") for line in reads)}
    wanted = recipe(name).metrics
    read = {metric: [] for metric in wanted}
    for line in lines.splitlines():
        for metric, value, _ in Metrics(wanted).read(line):
            read[metric].append(value)
    assert read == expected


@pytest.mark.parametrize("name", CONTAINED)
def test_command_uses_existing_files_and_their_options(name: str) -> None:
    words = shlex.split(recipe(name).launch.command)
    script = next((RECIPES / name / word for word in words if word.endswith((".py", ".lua"))), None)
    if script is None:
        assert name in ("digits", "nvcaffe")
        return
    options = [word for word in words if word.startswith("-")]
    text = script.read_text()
    assert [option for option in options if f'"{option}"' not in text and f"'{option}'" not in text] == []
