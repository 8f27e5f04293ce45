"""Follow a run: read from all agents concurrently, store logs by byte offset, and resume after lost connections."""

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from cloudgpu.clock import Clock
from cloudgpu.errors import ConnectError, HostKeyError, RemoteCommandError
from cloudgpu.run.agent import Agent, run_on_agents
from cloudgpu.run.agent_messages import Chunk, SpotNotice, Verdict, combine_verdicts, credible_verdicts
from cloudgpu.run.agent_reader import Contact, Feed, OnUnreachable, Reader, keep_retrying
from cloudgpu.run.log_store import LogStore
from cloudgpu.run.transport import NodeTransport
from cloudgpu.ssh.handshake import AuthRefusedError

_WAITING_CHUNKS: Final = 4
"""Maximum number of queued chunks of up to 1 MiB, so that fast writers cannot exhaust the caller's memory."""
_OTHERS_S: Final = 10.0
"""After a node has reported a failure, seconds without new data before the follower stops waiting for other nodes."""


def follow(
    agents: Sequence[Agent],
    ranks: Mapping[int, Sequence[int]],
    run_dirs: Mapping[int, str],
    logs: LogStore,
    clock: Clock,
    on_unreachable: OnUnreachable = keep_retrying,
    *,
    spot: bool = False,
) -> Iterator[Chunk | NodeTransport | SpotNotice | Verdict]:
    """Yield new log chunks of every rank and the nodes' networks as they arrive, then the final status.

    If `spot` is set, the agents also watch for notices of spot interruptions. A node repeats its notice when the
    connection to it was lost. `ranks` and `run_dirs` are keyed by node index. Abandoning the iterator has no effect on
    the nodes. `on_unreachable` is called on the reader threads.
    """
    feed = Feed(queue.Queue(maxsize=_WAITING_CHUNKS), threading.Event())
    readers = [
        Reader(
            agent,
            run_dirs[agent.host.node.index],
            {rank: logs.offset(rank) for rank in ranks.get(agent.host.node.index, ())},
            clock,
            feed,
            on_unreachable,
            spot=spot,
        )
        for agent in agents
    ]
    for reader in readers:
        reader.start()
    try:
        yield from _merged(feed, len(readers), logs, clock, ranks)
    finally:
        feed.ended.set()
        for reader in readers:
            reader.hang_up()


def copy_output(
    agents: Sequence[Agent], ranks: Mapping[int, Sequence[int]], run_dirs: Mapping[int, str], logs: LogStore
) -> None:
    """Copy the output that exists now from all nodes, without waiting for more."""

    def copy(agent: Agent) -> None:
        node = agent.host.node.index
        offsets = {rank: logs.offset(rank) for rank in ranks.get(node, ())}
        stream = agent.stream("follow", {"run_dir": run_dirs[node], "offsets": offsets, "once": True})
        try:
            for answer in agent.answers(stream, "follow"):
                if "rank" not in answer:
                    return
                chunk = Chunk.of(answer)
                if chunk.rank not in offsets:
                    raise RemoteCommandError(f"node {node} sent the log of rank {chunk.rank}, which it does not run")
                logs.add(chunk)
        finally:
            stream.close()

    run_on_agents(agents, copy)


def _merged(
    feed: Feed, readers: int, logs: LogStore, clock: Clock, ranks: Mapping[int, Sequence[int]]
) -> Iterator[Chunk | NodeTransport | SpotNotice | Verdict]:
    """Merge the readers until every node has finished or is unreachable.

    After a node has failed, do not wait for nodes that send no data.
    """
    results: list[Verdict | ConnectError] = []
    lost: dict[int, ConnectError] = {}
    last_item_at = clock.monotonic()
    while len(results) + len(lost) < readers:
        item = feed.next()
        failed = any(isinstance(result, Verdict) and not result.succeeded for result in results)
        if item is None:
            if failed and clock.monotonic() - last_item_at > _OTHERS_S:
                break
            continue
        last_item_at = clock.monotonic()
        if isinstance(item, Chunk):
            logs.add(item)
            yield item
        elif isinstance(item, NodeTransport | SpotNotice):
            yield item
        elif isinstance(item, Contact):
            lost.pop(item.node, None)
            if item.trouble is not None:
                lost[item.node] = item.trouble
        else:
            results.append(_result(item, failed=failed))
    yield _gang_verdict([*results, *lost.values()], ranks)


def _result(item: Verdict | BaseException, *, failed: bool) -> Verdict | ConnectError:
    """Return a node's final status, or the connection error if the other nodes can decide the result without it."""
    if isinstance(item, Verdict):
        return item
    if isinstance(item, ConnectError) and not isinstance(item, HostKeyError | AuthRefusedError):
        return item
    if failed and isinstance(item, RemoteCommandError | AuthRefusedError):
        return ConnectError(item.message)  # the run has failed, and may never have started on this node
    raise item


def _gang_verdict(results: Sequence[Verdict | ConnectError], ranks: Mapping[int, Sequence[int]]) -> Verdict:
    """Return the gang's final status. Success requires every node's complete logs, from which metrics are parsed."""
    verdicts = [result for result in results if isinstance(result, Verdict)]
    lost = [result for result in results if isinstance(result, ConnectError)]
    if lost and all(verdict.succeeded for verdict in verdicts):
        raise lost[0]
    return combine_verdicts(credible_verdicts(verdicts, ranks))
