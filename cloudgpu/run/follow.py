"""Follow a run: read from all agents concurrently, store logs by byte offset, and resume after lost connections."""

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from cloudgpu.clock import Clock
from cloudgpu.errors import ConnectError, HostKeyError, RemoteCommandError
from cloudgpu.run.agent import Agent
from cloudgpu.run.agent_reader import Contact, Feed, OnUnreachable, Reader, keep_retrying
from cloudgpu.run.log_store import LogStore
from cloudgpu.run.verdict import Chunk, Verdict, combine_verdicts, credible_verdicts
from cloudgpu.ssh.handshake import AuthRefusedError

_WAITING_CHUNKS: Final = 16
"""Maximum number of queued chunks of up to 1 MiB, so that fast writers cannot exhaust the caller's memory."""
_OTHERS_S: Final = 10.0
"""Seconds to wait for the other nodes after one node reports a failure."""


def follow(
    agents: Sequence[Agent],
    ranks: Mapping[int, Sequence[int]],
    run_dirs: Mapping[int, str],
    logs: LogStore,
    clock: Clock,
    on_unreachable: OnUnreachable = keep_retrying,
) -> Iterator[Chunk | Verdict]:
    """Yield new log chunks of every rank as they arrive, then the final status.

    `ranks` and `run_dirs` are keyed by node index. Abandoning the iterator has no effect on the nodes. `on_unreachable`
    is called on the reader threads.

    Raises:
        ConnectError: A node was unreachable for three minutes or was terminated, and no other node reported a failure.
            The run may still be in progress.
        RemoteCommandError: An agent sent an error or a malformed message.
        StateError: The local logs cannot be written.
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


def _merged(
    feed: Feed, readers: int, logs: LogStore, clock: Clock, ranks: Mapping[int, Sequence[int]]
) -> Iterator[Chunk | Verdict]:
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
        return ConnectError(item.message)  # the run has already failed, and this node may have no record of it
    raise item


def _gang_verdict(results: Sequence[Verdict | ConnectError], ranks: Mapping[int, Sequence[int]]) -> Verdict:
    """Return the gang's final status. Success requires the logs from every node, because metrics are read from them."""
    verdicts = [result for result in results if isinstance(result, Verdict)]
    lost = [result for result in results if isinstance(result, ConnectError)]
    if lost and all(verdict.succeeded for verdict in verdicts):
        raise lost[0]
    return combine_verdicts(credible_verdicts(verdicts, ranks))
