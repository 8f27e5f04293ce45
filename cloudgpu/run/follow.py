"""Following a gang: every node's agent is read at once, logs are kept by byte offset, a lost connection is resumed."""

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from cloudgpu.clock import Clock
from cloudgpu.errors import ConnectError, HostKeyError, RemoteCommandError
from cloudgpu.run.agent import Agent
from cloudgpu.run.log_store import LogStore
from cloudgpu.run.reader import Contact, Feed, OnSilence, Reader, wait_on
from cloudgpu.run.verdict import Chunk, Verdict, agreed, believable
from cloudgpu.ssh.handshake import AuthRefusedError

_WAITING_CHUNKS: Final = 16
"""A chunk holds a MiB at most: however much the ranks write, the caller holds no more than these."""
_OTHERS_S: Final = 10.0
"""How long the other nodes may be silent once one says that the run failed, seconds."""


def follow(
    agents: Sequence[Agent],
    ranks: Mapping[int, Sequence[int]],
    run_dirs: Mapping[int, str],
    logs: LogStore,
    clock: Clock,
    on_silence: OnSilence = wait_on,
) -> Iterator[Chunk | Verdict]:
    """Yield the chunks of every rank as they come, from where the logs here end, and last one verdict.

    `ranks` and `run_dirs` are by node index. Abandoning the iterator changes nothing on the nodes. `on_silence` is
    called in the readers' threads.

    Raises:
        ConnectError: Nodes could not be reached for three minutes or are gone, the others have told the end, and none
            tells of a failure; the run may still go on.
        RemoteCommandError: An agent answered with an error, or with what makes no sense.
        StateError: The logs cannot be written here.
    """
    feed = Feed(queue.Queue(maxsize=_WAITING_CHUNKS), threading.Event())
    readers = [
        Reader(
            agent,
            run_dirs[agent.host.node.index],
            {rank: logs.offset(rank) for rank in ranks.get(agent.host.node.index, ())},
            clock,
            feed,
            on_silence,
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
    """Until every node has told the end or is out of reach; once one tells of a failure, a dead one is not awaited."""
    told: list[Verdict | ConnectError] = []
    lost: dict[int, ConnectError] = {}
    heard_at = clock.monotonic()
    while len(told) + len(lost) < readers:
        item = feed.next()
        failed = any(isinstance(one, Verdict) and not one.succeeded for one in told)
        if item is None:
            if failed and clock.monotonic() - heard_at > _OTHERS_S:
                break
            continue
        heard_at = clock.monotonic()
        if isinstance(item, Chunk):
            logs.add(item)
            yield item
        elif isinstance(item, Contact):
            lost.pop(item.node, None)
            if item.trouble is not None:
                lost[item.node] = item.trouble
        else:
            told.append(_counted(item, failed=failed))
    yield _judged([*told, *lost.values()], ranks)


def _counted(item: Verdict | BaseException, *, failed: bool) -> Verdict | ConnectError:
    """What a node tells last: its verdict, or that it cannot be reached, which others may make up for."""
    if isinstance(item, Verdict):
        return item
    if isinstance(item, ConnectError) and not isinstance(item, HostKeyError | AuthRefusedError):
        return item
    if failed and isinstance(item, RemoteCommandError | AuthRefusedError):
        return ConnectError(item.message)  # the run is over, and this node has lost its memory of it
    raise item


def _judged(told: Sequence[Verdict | ConnectError], ranks: Mapping[int, Sequence[int]]) -> Verdict:
    """The gang's verdict; a success counts only when every node's logs are here: its figures are read from them."""
    verdicts = [one for one in told if isinstance(one, Verdict)]
    lost = [one for one in told if isinstance(one, ConnectError)]
    if lost and all(verdict.succeeded for verdict in verdicts):
        raise lost[0]
    return agreed(believable(verdicts, ranks))
