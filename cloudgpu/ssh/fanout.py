"""Run a function on all nodes in parallel, and wait until nodes that are booting accept logins.

A node's failure is returned as an error; other nodes are unaffected.
"""

import copy
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from cloudgpu.clock import Clock, require_not_cancelled
from cloudgpu.errors import CloudGpuError, ConnectError, HostKeyError, SshSetupError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.base import CONNECT_S
from cloudgpu.ssh.connection import ProhibitedForwardingError, SshHost, connect
from cloudgpu.ssh.forwarding import CarrierOf, TcpConnector
from cloudgpu.ssh.handshake import AuthRefusedError
from cloudgpu.workers import Workers

_BOOT_PAUSE_S = (0.5, 1.0, 2.0, 4.0, 5.0)
_LOGIN_GRACE_S = 60.0

FailureCheck = Callable[[Node, ConnectError], None]
"""Called after each failed attempt to connect to a node; may raise an error if further attempts would not help."""
LIMIT = 64
"""Default maximum number of nodes processed in parallel. More threads would only compete for the GIL."""
T = TypeVar("T")
A = TypeVar("A")


def retry_always(_node: Node, _failure: ConnectError) -> None:
    """Allow another attempt."""


def wait_for_ssh(
    node: Node,
    key: Path,
    *,
    clock: Clock,
    deadline_s: float,
    via: TcpConnector | None = None,
    hopeless: Callable[[], bool] = lambda: False,
    check: FailureCheck = retry_always,
) -> SshHost:
    """Connect to a node that may still be booting; retry with pauses for at most `deadline_s` seconds.

    A rejected login is retried for one minute only, because a socket-activated sshd may respond before cloud-init has
    created the user and installed the key. On a node that has finished its first boot, a rejected login is not retried.
    Once `hopeless` returns True, no failure is retried. `check` is called before each retry.
    """
    grace_s = 0.0 if node.booted else _LOGIN_GRACE_S
    end = clock.monotonic() + deadline_s
    login_end = None
    attempt = 0
    while True:
        now = clock.monotonic()
        try:
            return connect(node, key, clock=clock, timeout_s=max(1.0, min(CONNECT_S, end - now)), via=via)
        except AuthRefusedError as err:
            login_end = login_end or clock.monotonic() + grace_s
            if not err.retryable or hopeless() or clock.monotonic() >= min(end, login_end):
                raise
        except ConnectError as err:
            if not err.retryable or hopeless() or clock.monotonic() >= end:
                raise
            check(node, err)
        clock.sleep(_BOOT_PAUSE_S[min(attempt, len(_BOOT_PAUSE_S) - 1)])
        attempt += 1


class TerminatedNodeError(ConnectError):
    """The node does not respond because its instance is stopped or terminated."""


_FINAL = (HostKeyError, SshSetupError, AuthRefusedError, TerminatedNodeError, ProhibitedForwardingError)
"""Errors that end the wait for all nodes, because further attempts would not help. The first ones take precedence."""


def no_jump_node(_node: Node) -> None:
    """Return None, which means that the node is reached directly."""


class OnNode(Protocol):
    """An object with a `node`, such as a connection."""

    node: Node


H = TypeVar("H", bound=OnNode)


def run_on_all(hosts: Iterable[H], do: Callable[[H], T], *, limit: int = LIMIT) -> dict[int, T | CloudGpuError]:
    """Call `do` for every host in parallel; return results or errors by node index, in the order of the hosts.

    Only a `CloudGpuError` is returned. Any other exception is a bug: it cancels the calls that have not started, and is
    raised after the running calls have finished.
    """
    return _parallel([(host.node.index, host) for host in hosts], do, limit)


def connect_all(
    nodes: Sequence[Node],
    key: Path,
    *,
    clock: Clock,
    timeout_s: float = CONNECT_S,
    limit: int = LIMIT,
    carrier: CarrierOf = no_jump_node,
) -> dict[int, SshHost | CloudGpuError]:
    """Connect to every node in parallel; return connections or errors by node index.

    A node that has a jump node is reached through that jump node. For any other node, `carrier` returns the connector,
    or None for a direct connection.
    """

    def connect_to(node: Node, via: TcpConnector | None) -> SshHost:
        return connect(node, key, clock=clock, timeout_s=timeout_s, via=via)

    return _in_two_steps(nodes, connect_to, limit, carrier)


def wait_for_all(
    nodes: Sequence[Node],
    key: Path,
    *,
    clock: Clock,
    deadline_s: float,
    came: Callable[[SshHost], None] | None = None,
    carrier: CarrierOf = no_jump_node,
    check: FailureCheck = retry_always,
) -> dict[int, SshHost | CloudGpuError]:
    """Connect to nodes that may still be booting, in parallel; return connections or errors by node index.

    Nodes behind a jump node are contacted after all other nodes. These stop the retries for all nodes: a wrong host
    key, a key or network of this machine that cannot be used, a login that is still rejected after the grace period of
    `wait_for_ssh`, or an error raised by `check`.

    Args:
        nodes: Nodes to connect to.
        key: Private key for nodes that have no `key` of their own.
        clock: Clock for waiting.
        deadline_s: Time limit for the whole call, in seconds.
        came: Called with each new connection, on that node's thread.
        carrier: Returns the connector for a node without a jump node, or None for a direct connection.
        check: Called before each retry, on that node's thread.
    """
    end = clock.monotonic() + deadline_s
    hopeless = threading.Event()

    def wait(node: Node, via: TcpConnector | None) -> SshHost:
        left_s = max(0.0, end - clock.monotonic())
        try:
            host = wait_for_ssh(
                node, key, clock=clock, deadline_s=left_s, via=via, hopeless=hopeless.is_set, check=check
            )
        except _FINAL:
            hopeless.set()
            raise
        require_not_cancelled()
        if came is not None:
            came(host)
        return host

    return _in_two_steps(nodes, wait, max(1, len(nodes)), carrier)


def _in_two_steps(
    nodes: Sequence[Node], connect: Callable[[Node, TcpConnector | None], SshHost], limit: int, carrier: CarrierOf
) -> dict[int, SshHost | CloudGpuError]:
    """Connect to nodes without a jump node first, then to nodes behind a jump node."""
    first = [(node.index, node) for node in nodes if node.jump is None]
    behind = [(node.index, node) for node in nodes if node.jump is not None]
    outcomes = _parallel(first, lambda node: connect(node, carrier(node)), limit)
    outcomes |= _parallel(behind, lambda node: connect(node, _through(node, outcomes)), limit)
    return {node.index: outcomes[node.index] for node in nodes}


def _through(node: Node, outcomes: Mapping[int, SshHost | CloudGpuError]) -> SshHost:
    """Return the connection to a node's jump node."""
    jump = outcomes.get(node.jump) if node.jump is not None else None
    if isinstance(jump, SshHost):
        return jump
    why = f": {jump.message}" if jump is not None else ", which is not connected"
    message = f"node {node.index} is reached through node {node.jump}{why}"
    raise ConnectError(message, hint=jump.hint if jump is not None else f"connect to node {node.jump} as well")


def all_or_raise(outcomes: Mapping[int, T | CloudGpuError]) -> dict[int, T]:
    """Return the values if every node succeeded."""
    errors = {index: outcome for index, outcome in outcomes.items() if isinstance(outcome, CloudGpuError)}
    if errors:
        err = _summed_up(errors, len(outcomes))
        err.nodes = tuple(errors)
        raise err
    return {index: outcome for index, outcome in outcomes.items() if not isinstance(outcome, CloudGpuError)}


def _summed_up(errors: Mapping[int, CloudGpuError], nodes: int) -> CloudGpuError:
    final = (error for kind in _FINAL for error in errors.values() if isinstance(error, kind))
    first = next(final, next(iter(errors.values())))
    if len(errors) == 1:
        return first
    others = ", ".join(str(index) for index, error in errors.items() if error is not first)
    summary = copy.copy(first)
    summary.message = f"{first.message} ({len(errors)} of {nodes} nodes failed; also: {others})"
    summary.args = (summary.message,)
    summary.__cause__ = first
    return summary


def _parallel(work: Sequence[tuple[int, A]], do: Callable[[A], T], limit: int) -> dict[int, T | CloudGpuError]:
    def attempt(subject: A) -> T | CloudGpuError:
        try:
            return do(subject)
        except CloudGpuError as err:
            return err

    if not work:
        return {}
    with Workers(min(limit, len(work)), "cloudgpu-node") as pool:
        outcomes = list(pool.map(attempt, [subject for _, subject in work]))
    return dict(zip([index for index, _ in work], outcomes, strict=True))
