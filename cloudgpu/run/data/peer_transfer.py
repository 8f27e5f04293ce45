"""Peer transfer: distribute files from the first nodes to all other nodes over the cluster network, in rounds.

Every node that has the files serves a few nodes that lack them: 64 nodes take three rounds, and the source is read
once. A node serves files only until its receivers have them.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from cloudgpu.errors import RemoteCommandError
from cloudgpu.run.agent import Agent, run_on_agents
from cloudgpu.run.progress import Note, Report
from cloudgpu.ssh.keys import generate_certificate

WIDTH = 4
"""Number of nodes that one node serves at a time. More nodes would share the bandwidth without finishing sooner."""
_T = TypeVar("_T")

PeerAddress = Mapping[str, Any]
"""Connection parameters of the serving node (URL, token, certificate), and the archive size."""


def transfer_rounds(have: int, want: int, width: int = WIDTH) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return the transfers for each round as (source, target) positions. The first `have` positions have the files.

    In a round, each source serves at most `width` targets, evenly distributed.
    """
    have_now, transfers = have, []
    while have_now < have + want:
        targets = min(have_now * width, have + want - have_now)
        transfers.append(tuple((position % have_now, have_now + position) for position in range(targets)))
        have_now += targets
    return tuple(transfers)


def distribute_to_peers(
    agents: Sequence[Agent],
    have: int,
    what: Callable[[Agent], Mapping[str, Any]],
    take: Callable[[Agent, PeerAddress], _T],
    report: Report,
) -> dict[int, _T]:
    """Distribute files from the first `have` agents to all other agents. Return the results of `take` by node index.

    Args:
        agents: Agents in the order in which they receive the files. The first `have` agents already have the files.
        have: Number of agents that have the files.
        what: Returns the request fields that specify the files on a serving agent.
        take: Downloads the files on an agent from a serving node.
        report: Called with progress messages.
    """
    results: dict[int, _T] = {}
    for pairs in transfer_rounds(have, len(agents) - have):
        receivers: dict[int, list[Agent]] = {}
        for sender, receiver in pairs:
            receivers.setdefault(sender, []).append(agents[receiver])
        transfers = {
            agents[sender].host.node.index: _PeerTransfer(receivers[sender], what(agents[sender]))
            for sender in receivers
        }
        senders = [agents[sender] for sender in receivers]
        for answers in run_on_agents(senders, partial(_serve_receivers, transfers, take, report)).values():
            results |= answers
    return results


@dataclass(frozen=True)
class _PeerTransfer:
    """The files that one node serves in a round, and the nodes that download them."""

    receivers: Sequence[Agent]
    what: Mapping[str, Any]


def _serve_receivers(
    transfers: Mapping[int, _PeerTransfer], take: Callable[[Agent, PeerAddress], _T], report: Report, sender: Agent
) -> dict[int, _T]:
    transfer = transfers[sender.host.node.index]
    with serve_files(sender, transfer.what, report) as served:
        return run_on_agents(transfer.receivers, lambda receiver: take(receiver, served))


@contextmanager
def serve_files(agent: Agent, what: Mapping[str, Any], report: Report) -> Iterator[PeerAddress]:
    """Serve files from a node while the context is open."""
    node, certificate, token = agent.host.node, generate_certificate(datetime.now(UTC)), secrets.token_urlsafe(32)
    secret = {"token": token, "cert": certificate.pem, "key": certificate.key}
    stream = agent.stream("hand", {**what, "address": node.private_address, **secret})
    try:
        answer: Mapping[str, Any] = {}
        answers = agent.answers(stream, "hand")  # keep a reference: garbage-collecting the generator closes the stream
        for answer in answers:
            if "port" in answer:
                break
            report(Note(str(answer.get("progress", "")), node.index, detail=True))
        if "port" not in answer:
            raise RemoteCommandError(
                f"node {node.index} ({node.instance_id}): the agent exited before it could serve files",
                tail=stream.stderr.strip().splitlines()[-10:],
                hint="set share: each, so that every node downloads from the source",
            )
        host = f"[{node.private_address}]" if ":" in node.private_address else node.private_address
        yield {
            "hand": {"url": f"https://{host}:{answer['port']}", "token": token, "cert": certificate.pem},
            "size": answer["size"],
        }
    finally:
        stream.close()
