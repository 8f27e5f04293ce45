"""The request of `start`, parsed and validated."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import AgentError
from .status import run_dir

T = TypeVar("T")
_LONGEST_S = 366 * 86400.0
KEY_COMMENT = "cloudgpu-run:"
"""Begins the comment of a key that may log in while a run goes on; the run's id follows."""


@dataclass(frozen=True)
class Limits:
    """Time limits of the agent, in seconds.

    Attributes:
        grace_s: From the signal to a rank until it is killed.
        start_timeout_s: Until every node of the gang has connected.
        lost_s: Silence after which another node counts as lost.
        reconnect_s: For a disconnected node to reconnect.
        heartbeat_s: Interval between heartbeats.
        settle_s: How long the head waits for reports of an earlier failure.
    """

    grace_s: float = 10.0
    start_timeout_s: float = 300.0
    lost_s: float = 20.0
    reconnect_s: float = 5.0
    heartbeat_s: float = 1.0
    settle_s: float = 0.25


@dataclass(frozen=True)
class GangSpec:
    """The size of the gang and the address of its head. The token is secret."""

    head_address: str
    port: int
    token: str
    nodes: int


@dataclass(frozen=True)
class RankSpec:
    """A process to start. The run does not wait for processes with `decides` False; they are stopped at its end."""

    rank: int
    local_rank: int
    argv: tuple[str, ...]
    env: dict[str, str]
    role: str = ""
    decides: bool = True
    inside: str = ""
    """How a rank that is executed in a container is called there; empty for one on the node itself."""
    program: str = ""
    """What it runs there, for people."""


@dataclass(frozen=True)
class ContainerSpec:
    """The container of a node's ranks.

    Attributes:
        image: Name of its image, for display.
        client: First words of a command line for the node's engine.
        run: Rest of the command line that starts it.
        gpus: True if it gets the node's GPUs.
        devices: Indices of its GPUs, if it gets only some.
        own: Directories whose files are given to the node's user after the run.
    """

    name: str
    image: str
    client: tuple[str, ...]
    run: tuple[str, ...]
    gpus: bool = False
    devices: tuple[str, ...] = ()
    own: tuple[str, ...] = ()


@dataclass(frozen=True)
class StartSpec:
    """A node's part of a run. Contains secrets and is never written to disk."""

    run_id: str
    run_dir: str
    workdir: str
    node_index: int
    ranks: tuple[RankSpec, ...]
    secrets: dict[str, str]
    gang: GangSpec
    limits: Limits
    container: ContainerSpec | None = None
    admits: str = ""
    """Line of `authorized_keys` by which the run's head may log in here while the run goes on."""

    def __repr__(self) -> str:
        return f"StartSpec(run_id={self.run_id!r}, node_index={self.node_index})"


def read_start(given: dict[str, Any]) -> StartSpec:
    """Check the request.

    Raises:
        AgentError: Something is missing or of the wrong kind; values are never shown, they may be secret.
    """
    ranks = tuple(_rank(rank) for rank in _field(given, "ranks", list))
    if len({rank.rank for rank in ranks}) != len(ranks):
        raise AgentError("start: two ranks have the same number")
    gang = _gang(_object(given, "gang"))
    node_index = _field(given, "node_index", int)
    if not 0 <= node_index < gang.nodes:
        raise AgentError(f"start: node_index {node_index} is not one of {gang.nodes} nodes")
    return StartSpec(
        run_id=_field(given, "run_id", str),
        run_dir=run_dir(given),
        workdir=os.path.expanduser(_field(given, "workdir", str)),
        node_index=node_index,
        ranks=ranks,
        secrets=_strings(given, "secrets"),
        gang=gang,
        limits=_limits(given),
        container=_container(given.get("container")),
        admits=_admits(given),
    )


def _admits(given: dict[str, Any]) -> str:
    line = str(given.get("admits") or "")
    mark = f" {KEY_COMMENT}{given.get('run_id')}"
    if line and ("\n" in line or not line.endswith(mark)):
        raise AgentError(f"start: admits must be one line that ends with{mark}")
    return line


def _container(given: Any) -> ContainerSpec | None:  # noqa: ANN401 - unchecked input
    if given is None:
        return None
    if not isinstance(given, dict):
        raise AgentError("start: container must be an object")
    return ContainerSpec(
        _field(given, "name", str),
        _field(given, "image", str),
        _words(given, "client"),
        _words(given, "run"),
        bool(given.get("gpus")),
        _words(given, "devices", empty=True),
        _words(given, "own", empty=True),
    )


def _rank(given: Any) -> RankSpec:  # noqa: ANN401 - unchecked input
    if not isinstance(given, dict):
        raise AgentError("start: every rank must be an object")
    argv = _words(given, "argv")
    rank = _field(given, "rank", int)
    role, decides = str(given.get("role", "")), bool(given.get("decides", True))
    local_rank, env = _whole(given, "local_rank", 0), _strings(given, "env")
    inside, program = str(given.get("inside", "")), str(given.get("program", ""))
    return RankSpec(rank, local_rank, argv, env, role, decides, inside, program)


def _words(given: dict[str, Any], name: str, *, empty: bool = False) -> tuple[str, ...]:
    words: Any = given.get(name) or [] if empty else _field(given, name, list)
    if (
        not isinstance(words, list)
        or not (words or empty)
        or not all(isinstance(word, str) and "\0" not in word for word in words)
    ):
        raise AgentError(f"start: {name} must be words")
    return tuple(words)


def _gang(given: dict[str, Any]) -> GangSpec:
    nodes = _whole(given, "nodes", 1)
    if nodes < 1:
        raise AgentError("start: a gang has at least one node")
    if nodes == 1:
        return GangSpec("", 0, "", 1)
    token = _field(given, "token", str)
    if len(token) < 16:  # noqa: PLR2004 - a shorter one can be guessed
        raise AgentError("start: gang.token must have at least 16 characters")
    return GangSpec(_field(given, "head_address", str), _field(given, "port", int), token, nodes)


def _limits(given: dict[str, Any]) -> Limits:
    wanted = {name: given[name] for name in Limits.__dataclass_fields__ if given.get(name) is not None}
    for name, value in wanted.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _LONGEST_S:
            raise AgentError(f"start: {name} must be a number of seconds")
    return Limits(**{name: float(value) for name, value in wanted.items()})


def _object(given: dict[str, Any], name: str) -> dict[str, Any]:
    value = given.get(name) or {}
    if not isinstance(value, dict):
        raise AgentError(f"start: {name} must be an object")
    return value


def _whole(given: dict[str, Any], name: str, default: int) -> int:
    return default if given.get(name) is None else _field(given, name, int)


def _field(given: dict[str, Any], name: str, kind: type[T]) -> T:
    value = given.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise AgentError(f"start: {name} must be of type {kind.__name__}")
    return value


def _strings(given: dict[str, Any], name: str) -> dict[str, str]:
    pairs = given.get(name) or {}
    if not isinstance(pairs, dict) or not all(isinstance(value, str) and "\0" not in value for value in pairs.values()):
        raise AgentError(f"start: {name} must map names to texts")
    if any(not key or "=" in key or "\0" in key for key in pairs):
        raise AgentError(f"start: {name} holds an impossible name")
    return dict(pairs)
