"""From node to node: what the first node has goes on to the others in rounds, each over the cluster's own network.

Those who have it hand it to those who have not, a few at a time, so that a gang of sixty-four is served in three rounds
and nothing comes twice from where it came from. Nobody listens any more when the call has ended.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from cloudgpu.errors import RemoteCommandError
from cloudgpu.run.agent import Agent
from cloudgpu.run.each import each
from cloudgpu.run.progress import Note, Report
from cloudgpu.ssh.certificate import fresh_certificate

WIDTH = 4
"""Nodes that one node serves at a time: more would share its network card, and wait for the same round."""
_T = TypeVar("_T")

Handed = Mapping[str, Any]
"""How the one that hands over is asked: address, token and certificate; and how large an archive is."""


def rounds(have: int, want: int, width: int = WIDTH) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Who hands to whom: pairs of positions, of which the first `have` ones have it already.

    Every round serves at most `width` others by each that has it, evenly.
    """
    done, served = have, []
    while done < have + want:
        number = min(done * width, have + want - done)
        served.append(tuple((place % done, done + place) for place in range(number)))
        done += number
    return tuple(served)


def hand_on(
    agents: Sequence[Agent],
    have: int,
    what: Callable[[Agent], Mapping[str, Any]],
    take: Callable[[Agent, Handed], _T],
    report: Report,
) -> dict[int, _T]:
    """The first `have` agents hand on what they have until all have it; node index -> what `take` returned.

    Raises:
        RemoteCommandError: A node could not hand it over, or take it.
        ConnectError: A node cannot be reached.
    """
    taken: dict[int, _T] = {}
    for pairs in rounds(have, len(agents) - have):
        takers: dict[int, list[Agent]] = {}
        for giver, taker in pairs:
            takers.setdefault(giver, []).append(agents[taker])
        gifts = {agents[giver].host.node.index: _Gift(takers[giver], what(agents[giver])) for giver in takers}
        givers = [agents[giver] for giver in takers]
        for answers in each(givers, partial(_give, gifts, take, report)).values():
            taken |= answers
    return taken


@dataclass(frozen=True)
class _Gift:
    """What one node hands over in a round, and to whom."""

    takers: Sequence[Agent]
    what: Mapping[str, Any]


def _give(
    gifts: Mapping[int, _Gift], take: Callable[[Agent, Handed], _T], report: Report, giver: Agent
) -> dict[int, _T]:
    gift = gifts[giver.host.node.index]
    with handing(giver, gift.what, report) as handed:
        return each(gift.takers, lambda taker: take(taker, handed))


@contextmanager
def handing(agent: Agent, what: Mapping[str, Any], report: Report) -> Iterator[Handed]:
    """A node hands over for as long as this lasts.

    Raises:
        RemoteCommandError: It cannot.
        ConnectError: It cannot be reached.
    """
    node, certificate, token = agent.host.node, fresh_certificate(datetime.now(UTC)), secrets.token_urlsafe(32)
    secret = {"token": token, "cert": certificate.pem, "key": certificate.key}
    stream = agent.stream("hand", {**what, "address": node.private_address, **secret})
    try:
        answer: Mapping[str, Any] = {}
        answers = agent.answers(stream, "hand")  # held until the end: a generator that is dropped hangs up
        for answer in answers:
            if "port" in answer:
                break
            report(Note(str(answer.get("progress", "")), node.index))
        if "port" not in answer:
            raise RemoteCommandError(
                f"node {node.index} ({node.instance_id}) hands nothing over: its agent ended",
                tail=stream.stderr.strip().splitlines()[-10:],
                hint="share: each, then every node fetches for itself",
            )
        host = f"[{node.private_address}]" if ":" in node.private_address else node.private_address
        yield {
            "hand": {"url": f"https://{host}:{answer['port']}", "token": token, "cert": certificate.pem},
            "size": answer["size"],
        }
    finally:
        stream.close()
