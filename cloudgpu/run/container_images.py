"""Provide a recipe's image on every node: resolve its tag once, pull in parallel, and require the same image ID."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cloudgpu.catalog.catalog import unpacked_gib
from cloudgpu.decoding import decode_as, describe_error
from cloudgpu.errors import RemoteCommandError
from cloudgpu.launch.containers import DockerEngine, ImageName, parse_image_name
from cloudgpu.recipe.launch_sections import Container
from cloudgpu.run.agent import Agent, run_on_agents
from cloudgpu.run.containers import NodeImage
from cloudgpu.run.data.copies import PeerAddress, distribute_to_peers
from cloudgpu.run.progress import Note, Report
from cloudgpu.run.registry_logins import RegistryLogin
from cloudgpu.ssh.fanout import all_or_raise, run_on_all
from cloudgpu.text import plural

ECR: Final = re.compile(r"^[0-9]{12}\.dkr\.ecr(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/")
_GIB = 2**30


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
