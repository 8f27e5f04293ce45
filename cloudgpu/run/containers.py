"""Build the container part of each agent's `start` request, and the ranks' command lines inside it. No I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from cloudgpu.launch.containers import INSIDE, Engine, container_name, exec_line, pid_file
from cloudgpu.launch.inventory import Node
from cloudgpu.launch.network import uses_efa
from cloudgpu.launch.ranks import NodeLaunch, RankLaunch
from cloudgpu.node.containers.mounts import Mount
from cloudgpu.node.containers.run_line import Hardware, Holding, run_line
from cloudgpu.recipe.environment import Container
from cloudgpu.recipe.schema import Recipe
from cloudgpu.run.job import Job

_AGENT_FILES = "container"


@dataclass(frozen=True)
class NodeImage:
    """A recipe's image on one node, and the engine that runs it.

    Attributes:
        image: By its digest where it has one.
        image_id: The same on every node.
        entrypoint: The image's own, which stands before every rank's command as `docker run` would put it.
        devices: RDMA devices of the node.
    """

    image: str
    image_id: str
    digest: str
    entrypoint: tuple[str, ...]
    engine: Engine
    gpu_runtime: bool = False
    devices: tuple[str, ...] = ()
    huge_pages: bool = False


@dataclass(frozen=True)
class Place:
    """Where a run's things are on a node, as paths of the node.

    Attributes:
        data: Dataset name -> directory.
        storage: Name of what is mounted -> directory.
    """

    run_dir: str
    workdir: str
    data: Mapping[str, str]
    storage: Mapping[str, str]


def hardware(recipe: Recipe, node: Node, image: NodeImage) -> Hardware:
    """What of a node's hardware the ranks are given."""
    rdma = recipe.resources.network != "tcp"
    return Hardware(
        gpus=node.gpus > 0 and not node.simulated,
        subset=tuple(str(number) for number in node.devices),
        gpu_runtime=image.gpu_runtime,
        devices=image.devices if rdma else (),
        huge_pages=image.huge_pages and uses_efa(recipe, node),
    )


def mounts(recipe: Recipe, place: Place, launch: NodeLaunch) -> tuple[Mount, ...]:
    """Return the bind mounts: work directory, datasets, storage, and the files that the launcher wrote."""
    writable = {storage.name for storage in recipe.storage if storage.mode == "rw"}
    written = dict.fromkeys(PurePosixPath(file.path).parts[0] for file in launch.files)
    return (
        Mount(place.workdir),
        *(Mount(f"{place.run_dir}/{name}", read_only=True) for name in written),
        *(Mount(path, read_only=True) for path in place.data.values()),
        *(Mount(path, read_only=name not in writable) for name, path in place.storage.items()),
    )


def contained(
    job: Job, container: Container, node: Node, image: NodeImage, place: Place, launch: NodeLaunch
) -> dict[str, Any]:
    """Return the fields that a containerised node adds to its `start` request."""
    ranks = [
        {"inside": rank_name(rank), "program": rank.argv[0], "argv": list(inside(job, node, image, place, rank).argv)}
        for rank in launch.ranks
    ]
    return {"container": container_order(job, container, node, image, place, launch), "ranks": ranks}


def container_order(
    job: Job, container: Container, node: Node, image: NodeImage, place: Place, launch: NodeLaunch
) -> dict[str, Any]:
    """Return the `container` field of a `start` request."""
    given = hardware(job.recipe, node, image)
    name = container_name(job.run_id, node.index)
    labels = (("cloudgpu.run", job.run_id), ("cloudgpu.cluster", job.inventory.cluster))
    holding = Holding(name, image.image, labels, mounts(job.recipe, place, launch), f"{place.run_dir}/{_AGENT_FILES}")
    return {
        "name": name,
        "image": container.image,
        "client": list(image.engine.client),
        "run": list(run_line(container, given, holding)),
        "gpus": given.gpus,
        "devices": list(given.subset),
        "own": [place.workdir, INSIDE],
    }


def inside(job: Job, node: Node, image: NodeImage, place: Place, rank: RankLaunch) -> RankLaunch:
    """A rank as the node starts it: the same program, executed in the node's container."""
    called = rank_name(rank)
    line = exec_line(
        image.engine,
        container_name(job.run_id, node.index),
        (*image.entrypoint, *rank.argv),
        workdir=place.workdir,
        pid_file=pid_file(called),
        env_file=f"{place.run_dir}/{called}.names",
    )
    return replace(rank, argv=line)


def entering(run_id: str, images: Mapping[int, NodeImage], workdir: str) -> dict[int, tuple[str, ...]]:
    """Return, by node index, the command prefix that runs a program in that node's container."""
    return {
        index: exec_line(
            image.engine, container_name(run_id, index), image.entrypoint, workdir=workdir, interactive=True
        )
        for index, image in images.items()
    }


def rank_name(rank: RankLaunch) -> str:
    """How a rank is called inside: its files there begin with it."""
    return f"rank-{rank.rank}"
