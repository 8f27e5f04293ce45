"""A run's containers: pull the image on every node, start the containers, and execute the ranks' commands in them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from cloudgpu.catalog.catalog import unpacked_gib
from cloudgpu.decoding import decode_as, describe_error
from cloudgpu.errors import RemoteCommandError
from cloudgpu.launch.containers import (
    INSIDE,
    DockerEngine,
    ImageName,
    container_name,
    exec_line,
    parse_image_name,
    pid_file,
)
from cloudgpu.launch.environment import uses_efa, watches_network
from cloudgpu.launch.inventory import Node
from cloudgpu.launch.ranks import NodeLaunch, RankLaunch
from cloudgpu.node.agent.transport import PLUGIN_NAMES_FILE, PLUGIN_SCRIPT
from cloudgpu.node.containers import RDMA_FOLDER, BindMount, ContainerLaunch, Hardware, run_line
from cloudgpu.recipe.launch_sections import Container
from cloudgpu.recipe.schema import Recipe
from cloudgpu.run.agent import Agent, run_on_agents
from cloudgpu.run.dataset_copies import PeerAddress, distribute_to_peers
from cloudgpu.run.job import Job
from cloudgpu.run.progress import Note, Report
from cloudgpu.run.registry_logins import RegistryLogin
from cloudgpu.ssh.fanout import all_or_raise, run_on_all
from cloudgpu.text import plural

AGENT_FILES = "container"
"""Directory of the agent's files in the directory of a run or setup. It is mounted in the container."""
_GIB = 2**30


@dataclass(frozen=True)
class SetupImage:
    """The local image that a recipe's setup made of its image on one node.

    Attributes:
        workdir: Directory on the node in which the setup ran. Installed packages may refer to it.
    """

    name: str
    workdir: str


@dataclass(frozen=True)
class NodeImage:
    """A recipe's image on one node, and the engine that runs it.

    Attributes:
        image: Image name with its digest, or the image ID if the digest is unknown.
        image_id: Image ID, which is the same on every node.
        entrypoint: Entry point of the image, prepended to every rank's command, as `docker run` would do.
        devices: RDMA devices of the node, and `/dev/gdrdrv` if it exists.
        setup: The image that the setup made of it; None if the recipe has no setup.
    """

    image: str
    image_id: str
    digest: str
    entrypoint: tuple[str, ...]
    engine: DockerEngine
    gpu_runtime: bool = False
    devices: tuple[str, ...] = ()
    huge_pages: bool = False
    setup: SetupImage | None = None

    @property
    def to_run(self) -> str:
        """Image that the ranks run in: the one that the setup made, if the recipe has a setup."""
        return self.image if self.setup is None else self.setup.name


@dataclass(frozen=True)
class NodeRunPaths:
    """Paths of a run on a node.

    Attributes:
        data: Directory of each dataset, by name.
        storage: Directory of each storage mount, by name.
    """

    run_dir: str
    workdir: str
    data: Mapping[str, str]
    storage: Mapping[str, str]


def container_hardware(recipe: Recipe, node: Node, image: NodeImage) -> Hardware:
    """Return the node hardware that is passed to the ranks' container."""
    rdma = recipe.resources.network != "tcp"
    return Hardware(
        gpus=node.gpus > 0 and not node.simulated,
        subset=tuple(str(number) for number in node.devices),
        gpu_runtime=image.gpu_runtime,
        devices=tuple(path for path in image.devices if rdma or not path.startswith(RDMA_FOLDER)),
        huge_pages=image.huge_pages and uses_efa(recipe, node),
    )


def node_run_paths(job: Job, agent: Agent, data: Mapping[str, str]) -> NodeRunPaths:
    """Return the paths of a run on a node. `data` has the directory of each dataset, without the node's root prefix."""
    storage = {storage.name: f"{agent.root}{storage.to}" for storage in job.recipe.storage}
    rooted = {name: f"{agent.root}{path}" for name, path in data.items()}
    return NodeRunPaths(job.run_dir(agent.home), job.workdir(agent.home), rooted, storage)


def container_mounts(recipe: Recipe, paths: NodeRunPaths, image: NodeImage, launch: NodeLaunch) -> list[BindMount]:
    """Return the mounts of the ranks' container: work directory, launcher files, datasets and storage.

    If the recipe has a setup, its work directory is mounted too.
    """
    launcher_paths = dict.fromkeys(PurePosixPath(file.path).parts[0] for file in launch.files)
    return [
        BindMount(paths.workdir),
        *([] if image.setup is None else [BindMount(image.setup.workdir, read_only=True)]),
        *(BindMount(f"{paths.run_dir}/{name}", read_only=True) for name in launcher_paths),
        *data_mounts(recipe, paths),
    ]


def data_mounts(recipe: Recipe, paths: NodeRunPaths) -> list[BindMount]:
    """Return the mounts of the datasets and the storage."""
    writable = {storage.name for storage in recipe.storage if storage.mode == "rw"}
    return [
        *(BindMount(path, read_only=True) for path in paths.data.values()),
        *(BindMount(path, read_only=name not in writable) for name, path in paths.storage.items()),
    ]


def container_start_fields(
    job: Job, container: Container, node: Node, image: NodeImage, paths: NodeRunPaths, launch: NodeLaunch
) -> dict[str, Any]:
    """Return the additional fields of the `start` request for a node whose ranks run in a container."""
    ranks = [
        {
            "inside": rank_name(rank),
            "program": rank.argv[0],
            "argv": list(wrap_in_container(job, node, image, paths, rank).argv),
        }
        for rank in launch.ranks
    ]
    return {"container": container_order(job, container, node, image, paths, launch), "ranks": ranks}


def container_order(
    job: Job, container: Container, node: Node, image: NodeImage, paths: NodeRunPaths, launch: NodeLaunch
) -> dict[str, Any]:
    """Return the container part of the `start` request."""
    node_hardware = container_hardware(job.recipe, node, image)
    name = container_name(job.run_id, node.index)
    labels = (("cloudgpu.run", job.run_id), ("cloudgpu.cluster", job.inventory.cluster))
    mounts = container_mounts(job.recipe, paths, image, launch)
    holding = ContainerLaunch(name, image.to_run, labels, tuple(mounts), f"{paths.run_dir}/{AGENT_FILES}")
    return {
        "name": name,
        "image": container.image,
        "client": list(image.engine.client),
        "run": list(run_line(container, node_hardware, holding)),
        "gpus": node_hardware.gpus,
        "devices": list(node_hardware.subset),
        "own": [paths.workdir, INSIDE],
        **_plugin_check(job, node, image, paths),
    }


def _plugin_check(job: Job, node: Node, image: NodeImage, paths: NodeRunPaths) -> dict[str, list[str]]:
    """Return the command that looks for NCCL's EFA plugin in the container of a node that would use EFA.

    It goes through the image's entry point, which may set the loader's path.
    """
    if not node.efa or not watches_network(job.inventory) or job.recipe.resources.network == "tcp":
        return {}
    line = exec_line(
        image.engine,
        container_name(job.run_id, node.index),
        (*image.entrypoint, "sh", "-c", PLUGIN_SCRIPT),
        workdir=paths.workdir,
        env_file=f"{paths.run_dir}/{PLUGIN_NAMES_FILE}",
    )
    return {"plugin_check": list(line)}


def wrap_in_container(job: Job, node: Node, image: NodeImage, paths: NodeRunPaths, rank: RankLaunch) -> RankLaunch:
    """Return a rank's command wrapped so that it runs in the node's container."""
    name = rank_name(rank)
    line = exec_line(
        image.engine,
        container_name(job.run_id, node.index),
        (*image.entrypoint, *rank.argv),
        workdir=paths.workdir,
        pid_file=pid_file(name),
        env_file=f"{paths.run_dir}/{name}.names",
    )
    return replace(rank, argv=line)


def exec_prefixes(run_id: str, images: Mapping[int, NodeImage], workdir: str) -> dict[int, tuple[str, ...]]:
    """Return, by node index, the command prefix that runs a program in the node's container."""
    return {
        index: exec_line(
            image.engine, container_name(run_id, index), image.entrypoint, workdir=workdir, interactive=True
        )
        for index, image in images.items()
    }


def rank_name(rank: RankLaunch) -> str:
    """Return the rank's name in its container, which is also the prefix of the rank's file names."""
    return f"rank-{rank.rank}"


@dataclass(frozen=True)
class _EngineFound:
    """The Docker engine of a node, as reported by the node's agent."""

    docker: str
    host: str
    gpu_runtime: bool
    devices: tuple[str, ...]
    huge_pages: bool


@dataclass(frozen=True)
class _Provided:
    """An agent's response to the `image` verb."""

    id: str
    digest: str
    entrypoint: tuple[str, ...]
    pulled: bool
    engine: _EngineFound


def provide_image(
    container: Container, agents: Sequence[Agent], login: RegistryLogin | None, report: Report
) -> dict[int, NodeImage]:
    """Provide the image on every node, and return each node's image by node index."""
    name = parse_image_name(container.image)
    request = _request(container, name, login)
    head = min(agents, key=lambda agent: agent.host.node.index)
    digest = str(head.ask("image", {**request, "resolve": True}, _progress_relay(head, report)).get("digest") or "")
    if digest:
        report(Note(f"image {container.image} resolved to {digest}", detail=True))
    if container.share == "head":
        provided = _pull_on_head(agents, head, {**request, "digest": digest}, report)
    else:
        provided = _request_on_all(agents, {**request, "digest": digest}, report)
    first = provided[head.host.node.index].digest
    if container.share == "each" and not digest and first and any(image.digest != first for image in provided.values()):
        # The tag moved during the pull. Use the head node's image everywhere.
        provided = _request_on_all(agents, {**request, "digest": first}, report)
    _require_same_image(container, agents, provided)
    report(
        Note(
            f"image {container.image}: {_pull_summary(sum(image.pulled for image in provided.values()), len(provided))}"
        )
    )
    return {index: _node_image(name, image) for index, image in provided.items()}


def _pull_on_head(
    agents: Sequence[Agent], head: Agent, request: Mapping[str, Any], report: Report
) -> dict[int, _Provided]:
    """Pull the image on the head node and transfer it to nodes that lack it, so that those nodes need no login."""
    head_image = _request_image(head, request, report)
    request_by_id = {**request, "id": head_image.id, "login": {}}
    rest = [agent for agent in agents if agent is not head]
    responses = run_on_agents(rest, lambda agent: agent.ask("image", request_by_id))
    missing = [agent for agent in rest if responses[agent.host.node.index].get("missing")]
    missing_indexes = {agent.host.node.index for agent in missing}
    provided = {index: _read(index, answer) for index, answer in responses.items() if index not in missing_indexes}

    def fetch(agent: Agent, archive: PeerAddress) -> _Provided:
        return _request_image(
            agent, {**request_by_id, "hand": archive["hand"], "archive_bytes": archive["size"]}, report
        )

    fetched = distribute_to_peers([head, *missing], 1, lambda _: {"image": head_image.id}, fetch, report)
    return {head.host.node.index: head_image, **provided, **fetched}


def _request_image(agent: Agent, request: Mapping[str, Any], report: Report) -> _Provided:
    return _read(agent.host.node.index, agent.ask("image", request, _progress_relay(agent, report)))


def _pull_summary(pulled: int, nodes: int) -> str:
    if pulled in (0, nodes):
        where = "on every node" if nodes > 1 else "on the node"
        return f"pulled {where}" if pulled else f"already {where}"
    return f"pulled on {plural(pulled, 'node')}, already on {nodes - pulled}"


def _request(container: Container, name: ImageName, login: RegistryLogin | None) -> dict[str, Any]:
    size_gib = unpacked_gib(container.image)
    size_fields = {} if size_gib is None else {"size_bytes": size_gib * _GIB}
    login_fields = {} if login is None else {"username": login.user, "password": login.password, "server": name.server}
    return {
        "image": container.image,
        "repository": name.repository,
        "tag": name.tag,
        "digest": name.digest,
        "pull": container.pull,
        "login": login_fields,
        **size_fields,
    }


def _request_on_all(agents: Sequence[Agent], request: Mapping[str, Any], report: Report) -> dict[int, _Provided]:
    by_index = {agent.host.node.index: agent for agent in agents}

    hosts = [agent.host for agent in agents]
    return all_or_raise(run_on_all(hosts, lambda host: _request_image(by_index[host.node.index], request, report)))


def _progress_relay(agent: Agent, report: Report) -> Any:  # noqa: ANN401 - a callback
    def relay(line: Mapping[str, Any]) -> None:
        if "progress" in line:
            report(Note(str(line["progress"]), agent.host.node.index, detail=True))

    return relay


def _require_same_image(container: Container, agents: Sequence[Agent], provided: Mapping[int, _Provided]) -> None:
    """Require the same image on all nodes, because a mismatch makes runs fail in ways that are hard to diagnose."""
    ids = {image.id for image in provided.values()}
    if len(ids) > 1:
        named = ", ".join(f"node {index} has {image.id[7:19]}" for index, image in sorted(provided.items()))
        raise RemoteCommandError(
            f"the {len(agents)} nodes have different images named {container.image}: {named}",
            hint="set environment.container.pull to always, or use the image's digest",
        )


def _read(index: int, answer: Mapping[str, Any]) -> _Provided:
    """Parse the response of a node's `image` verb."""
    try:
        return decode_as(_Provided, dict(answer))
    except ValueError as err:
        message = f"node {index}: the agent's response to `image` is malformed: {describe_error(err)}"
        raise RemoteCommandError(message, hint="run the command again") from None


def _node_image(name: ImageName, provided: _Provided) -> NodeImage:
    engine = provided.engine
    return NodeImage(
        # A local image has no registry digest. Its ID is just as immutable.
        image=name.pinned(provided.digest) if provided.digest else provided.id,
        image_id=provided.id,
        digest=provided.digest,
        entrypoint=provided.entrypoint,
        engine=DockerEngine(engine.docker, engine.host),
        gpu_runtime=engine.gpu_runtime,
        devices=engine.devices,
        huge_pages=engine.huge_pages,
    )
