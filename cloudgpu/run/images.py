"""A recipe's image on every node: looked up once, pulled by all nodes at once, and the very same everywhere."""

from collections.abc import Mapping, Sequence
from typing import Any

from cloudgpu.catalog.image_sizes import unpacked_gib
from cloudgpu.errors import RemoteCommandError
from cloudgpu.launch.containers import Engine
from cloudgpu.launch.image_name import ImageName, image_name
from cloudgpu.recipe.environment import Container
from cloudgpu.remote.fanout import all_or_raise, on_all
from cloudgpu.run.agent import Agent
from cloudgpu.run.containers import NodeImage
from cloudgpu.run.each import each
from cloudgpu.run.hand import Handed, hand_on
from cloudgpu.run.logins import Login
from cloudgpu.run.progress import Note, Report

_GIB = 2**30


def provide_image(
    container: Container, agents: Sequence[Agent], login: Login | None, report: Report
) -> dict[int, NodeImage]:
    """The image on every node, by node index.

    Raises:
        RemoteCommandError: A node cannot have it, or the nodes hold different ones; the node is named.
        ConnectError: A node cannot be reached.
    """
    name = image_name(container.image)
    request = _request(container, name, login)
    head = min(agents, key=lambda one: one.host.node.index)
    digest = str(head.ask("image", {**request, "resolve": True}, _relayed(head, report)).get("digest") or "")
    if digest:
        report(Note(f"image {container.image} is {digest}"))
    if container.share == "head":
        found = _handed_on(agents, head, {**request, "digest": digest}, report)
    else:
        found = _on_all(agents, {**request, "digest": digest}, report)
    first = str(found[head.host.node.index]["digest"])
    if container.share == "each" and not digest and first and any(one["digest"] != first for one in found.values()):
        # The tag has moved while it was pulled: what the head has counts.
        found = _on_all(agents, {**request, "digest": first}, report)
    _same_everywhere(container, agents, found)
    report(Note(f"image {container.image}: {_done(sum(bool(one['pulled']) for one in found.values()), len(found))}"))
    return {index: _node_image(name, answer) for index, answer in found.items()}


def _handed_on(
    agents: Sequence[Agent], head: Agent, request: Mapping[str, Any], report: Report
) -> dict[int, dict[str, Any]]:
    """Pulled by the head, and handed on to those that do not have this very image; they need no login."""
    answer = head.ask("image", request, _relayed(head, report))
    same = {**request, "id": answer["id"], "login": {}}
    rest = [agent for agent in agents if agent is not head]
    found = {head.host.node.index: answer, **each(rest, lambda agent: agent.ask("image", same))}
    missing = [agent for agent in rest if found[agent.host.node.index].get("missing")]

    def take(agent: Agent, handed: Handed) -> dict[str, Any]:
        asked = {**same, "hand": handed["hand"], "archive_bytes": handed["size"]}
        return agent.ask("image", asked, _relayed(agent, report))

    return found | hand_on([head, *missing], 1, lambda _: {"image": answer["id"]}, take, report)


def _done(pulled: int, nodes: int) -> str:
    if pulled in (0, nodes):
        where = "on every node" if nodes > 1 else "on the node"
        return f"pulled {where}" if pulled else f"already {where}"
    return f"pulled on {pulled} nodes, {nodes - pulled} had it"


def _request(container: Container, name: ImageName, login: Login | None) -> dict[str, Any]:
    size = unpacked_gib(container.image)
    known = {} if size is None else {"size_bytes": size * _GIB}
    secret = {} if login is None else {"username": login.user, "password": login.password, "server": name.server}
    return {
        "image": container.image,
        "repository": name.repository,
        "tag": name.tag,
        "digest": name.digest,
        "pull": container.pull,
        "login": secret,
        **known,
    }


def _on_all(agents: Sequence[Agent], request: Mapping[str, Any], report: Report) -> dict[int, dict[str, Any]]:
    by_index = {agent.host.node.index: agent for agent in agents}

    def ask(index: int) -> dict[str, Any]:
        return by_index[index].ask("image", request, _relayed(by_index[index], report))

    return all_or_raise(on_all([agent.host for agent in agents], lambda host: ask(host.node.index)))


def _relayed(agent: Agent, report: Report) -> Any:  # noqa: ANN401 - a callback
    def relay(line: Mapping[str, Any]) -> None:
        if "progress" in line:
            report(Note(str(line["progress"]), agent.host.node.index))

    return relay


def _same_everywhere(container: Container, agents: Sequence[Agent], found: Mapping[int, Mapping[str, Any]]) -> None:
    """Ranks of different images disagree in ways that nobody finds."""
    ids = {str(one["id"]) for one in found.values()}
    if len(ids) > 1:
        named = ", ".join(f"node {index} has {str(one['id'])[7:19]}" for index, one in sorted(found.items()))
        raise RemoteCommandError(
            f"the {len(agents)} nodes hold different images called {container.image}: {named}",
            hint="set environment.container.pull to always, or name the image by its digest",
        )


def _node_image(name: ImageName, answer: Mapping[str, Any]) -> NodeImage:
    engine, digest = answer["engine"], str(answer["digest"])
    return NodeImage(
        # An image that no registry knows is named by its own id: nothing can move that either.
        image=name.pinned(digest) if digest else str(answer["id"]),
        image_id=str(answer["id"]),
        digest=digest,
        entrypoint=tuple(answer["entrypoint"]),
        engine=Engine(str(engine["docker"]), str(engine["host"])),
        gpu_runtime=bool(engine["gpu_runtime"]),
        devices=tuple(engine["devices"]),
        huge_pages=bool(engine["huge_pages"]),
    )
