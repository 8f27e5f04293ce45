"""Parse and validate a `start` request."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, TypeVar

from ..containers.run_container import ContainerSpec, read_container, read_words
from ..untrusted_data import AgentError
from .status import log_path, run_dir

T = TypeVar("T")
_LONGEST_S = 366 * 86400.0
KEY_COMMENT = "cloudgpu-run:"
"""Prefix of the comment on a key that is authorized during a run. The run ID follows the prefix."""


@dataclass(frozen=True)
class Limits:
    """Time limits of the agent, in seconds.

    Attributes:
        grace_s: Time between the stop signal to a rank and SIGKILL.
        start_timeout_s: Time within which every node of the gang must connect.
        lost_s: Silence after which another node counts as lost.
        reconnect_s: Time within which a disconnected node must reconnect.
        heartbeat_s: Interval between heartbeats.
        settle_s: Time that the head node waits, after the first reported failure, for reports of earlier failures.
    """

    grace_s: float = 10.0
    start_timeout_s: float = 300.0
    lost_s: float = 20.0
    reconnect_s: float = 5.0
    heartbeat_s: float = 1.0
    settle_s: float = 0.25


@dataclass(frozen=True)
class GangSpec:
    """The size of the gang and the address of its head node. The token is secret."""

    head_address: str
    port: int
    token: str
    nodes: int


@dataclass(frozen=True)
class RankSpec:
    """A process to start. If `decides` is False, the run does not wait for the process and stops it at the end."""

    rank: int
    local_rank: int
    argv: tuple[str, ...]
    env: dict[str, str]
    role: str = ""
    decides: bool = True
    inside: str = ""
    """Name of the rank in its container; empty if the rank runs directly on the node."""
    program: str = ""
    """Program that the rank runs in the container, for messages."""


@dataclass(frozen=True)
class TransportSpec:
    """The network between the nodes, which the agent reads from NCCL's log.

    Attributes:
        required: Network without which the run fails, such as `efa`; empty to accept any.
    """

    required: str = ""


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
    transport: TransportSpec | None = None
    """How to watch the network between the nodes; None to leave it unwatched."""
    admits: str = ""
    """`authorized_keys` line that lets the run's head node log in to this node during the run."""
    alone: bool = False
    """Whether to refuse the start while another run on this node has not ended."""

    def __repr__(self) -> str:
        return f"StartSpec(run_id={self.run_id!r}, node_index={self.node_index})"


def log_paths(spec: StartSpec) -> list[str]:
    """Return the paths of the logs of a node's ranks."""
    return [log_path(spec.run_dir, rank.rank) for rank in spec.ranks]


def read_start(request: dict[str, Any]) -> StartSpec:
    """Parse and validate the request."""
    ranks = tuple(_rank(rank) for rank in _field(request, "ranks", list))
    if len({rank.rank for rank in ranks}) != len(ranks):
        raise AgentError("start: two ranks have the same number")
    gang = _gang(_object(request, "gang"))
    node_index = _field(request, "node_index", int)
    if not 0 <= node_index < gang.nodes:
        raise AgentError(f"start: node_index {node_index} is out of range for {gang.nodes} nodes")
    container = request.get("container")
    return StartSpec(
        run_id=_field(request, "run_id", str),
        run_dir=run_dir(request),
        workdir=os.path.expanduser(_field(request, "workdir", str)),
        node_index=node_index,
        ranks=ranks,
        secrets=_strings(request, "secrets"),
        gang=gang,
        limits=_limits(request),
        container=None if container is None else read_container(container, "start: container"),
        transport=None if request.get("transport") is None else _transport(_object(request, "transport")),
        admits=_admits(request),
        alone=bool(request.get("alone")),
    )


def _admits(request: dict[str, Any]) -> str:
    line = str(request.get("admits") or "")
    mark = f" {KEY_COMMENT}{request.get('run_id')}"
    if line and ("\n" in line or not line.endswith(mark)):
        raise AgentError(f"start: admits must be one line that ends with{mark}")
    return line


def _transport(request: dict[str, Any]) -> TransportSpec:
    return TransportSpec(_field(request, "required", str))


def _rank(request: Any) -> RankSpec:  # noqa: ANN401 - unchecked input
    if not isinstance(request, dict):
        raise AgentError("start: every rank must be an object")
    argv = read_words(request, "argv", "start: ranks")
    rank = _field(request, "rank", int)
    role, decides = str(request.get("role", "")), bool(request.get("decides", True))
    local_rank, env = _whole(request, "local_rank", 0), _strings(request, "env")
    inside, program = str(request.get("inside", "")), str(request.get("program", ""))
    return RankSpec(rank, local_rank, argv, env, role, decides, inside, program)


def _gang(request: dict[str, Any]) -> GangSpec:
    nodes = _whole(request, "nodes", 1)
    if nodes < 1:
        raise AgentError("start: a run needs at least one node")
    if nodes == 1:
        return GangSpec("", 0, "", 1)
    token = _field(request, "token", str)
    if len(token) < 16:  # noqa: PLR2004 - a shorter token can be guessed
        raise AgentError("start: gang.token must have at least 16 characters")
    return GangSpec(_field(request, "head_address", str), _field(request, "port", int), token, nodes)


def _limits(request: dict[str, Any]) -> Limits:
    limits = {name: request[name] for name in Limits.__dataclass_fields__ if request.get(name) is not None}
    for name, value in limits.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _LONGEST_S:
            raise AgentError(f"start: {name} must be a number of seconds")
    return Limits(**{name: float(value) for name, value in limits.items()})


def _object(request: dict[str, Any], name: str) -> dict[str, Any]:
    value = request.get(name) or {}
    if not isinstance(value, dict):
        raise AgentError(f"start: {name} must be an object")
    return value


def _whole(request: dict[str, Any], name: str, default: int) -> int:
    return default if request.get(name) is None else _field(request, name, int)


def _field(request: dict[str, Any], name: str, kind: type[T]) -> T:
    value = request.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise AgentError(f"start: {name} must be of type {kind.__name__}")
    return value


def _strings(request: dict[str, Any], name: str) -> dict[str, str]:
    pairs = request.get(name) or {}
    if not isinstance(pairs, dict) or not all(isinstance(value, str) and "\0" not in value for value in pairs.values()):
        raise AgentError(f"start: {name} must map names to strings")
    if any(not key or "=" in key or "\0" in key for key in pairs):
        raise AgentError(f"start: {name} contains an invalid name")
    return dict(pairs)
