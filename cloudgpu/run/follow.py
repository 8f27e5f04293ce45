"""Follow a run: read from all agents concurrently, store logs by byte offset, and resume after lost connections."""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cloudgpu.clock import Clock
from cloudgpu.errors import ConnectError, HostKeyError, RemoteCommandError
from cloudgpu.launch.inventory import Node
from cloudgpu.run.agent import Agent, run_on_agents
from cloudgpu.run.agent_messages import Chunk, SpotNotice, Verdict, combine_verdicts, credible_verdicts
from cloudgpu.run.log_store import LogStore
from cloudgpu.run.transport import NodeTransport
from cloudgpu.ssh.base import Stream
from cloudgpu.ssh.handshake import AuthRefusedError

LOST_CONTACT_S: Final = 180.0
"""Seconds without contact after which a node is considered lost. The other nodes are still followed."""
_RETRY_S: Final = 1.0
_RETRY_LOST_S: Final = 15.0
"""Seconds between attempts after contact is lost. Longer than `_RETRY_S`, because a run may last for days."""
_SILENT_S: Final = 2.0
"""Minimum duration, in seconds, of an interruption before it is reported."""
_TELL_EVERY_S: Final = 15.0
_TELL_LOST_EVERY_S: Final = 600.0
_REFUSALS: Final = 3
"""Number of consecutive refused logins that end the retries. A node briefly refuses all logins during shutdown."""
_LOOK_S: Final = 0.2
OnUnreachable = Callable[[Node, ConnectError | RemoteCommandError], None]
"""Called periodically while a node is unreachable. Raises ConnectError if the node was terminated, to stop retries."""
_WAITING_CHUNKS: Final = 4
"""Maximum number of queued chunks of up to 1 MiB, so that fast writers cannot exhaust the caller's memory."""
_OTHERS_S: Final = 10.0
"""After a node has reported a failure, seconds without new data before the follower stops waiting for other nodes."""


@dataclass(frozen=True)
class Contact:
    """A change in contact with a node: it has been unreachable for `LOST_CONTACT_S`, or is reachable again.

    Attributes:
        node: Index of the node.
        trouble: The connection error; None if contact was restored.
    """

    node: int
    trouble: ConnectError | None


Item = Chunk | Verdict | NodeTransport | SpotNotice | Contact | BaseException


def keep_retrying(_node: Node, _trouble: ConnectError | RemoteCommandError) -> None:
    """Ignore the interruption and keep retrying."""


@dataclass(frozen=True)
class Feed:
    """Bounded queue between the readers and the follower. A full queue slows the readers down.

    Attributes:
        ended: Set when the follower has stopped reading.
    """

    items: "queue.Queue[Item]"
    ended: threading.Event

    def put(self, item: Item) -> None:
        """Add an item. If the queue is full, block until it has space or the follower stops."""
        while not self.ended.is_set():
            with contextlib.suppress(queue.Full):
                self.items.put(item, timeout=_LOOK_S)
                return

    def next(self) -> Item | None:
        """Return the next item, or None if no item was added within the poll interval."""
        try:
            return self.items.get(timeout=_LOOK_S)
        except queue.Empty:
            return None


class Reader(threading.Thread):
    """Thread that reads one node's agent into the feed and resumes from the last offsets after a reconnect.

    The thread keeps retrying after contact is lost, because the network may recover while other nodes are followed.
    """

    def __init__(
        self,
        agent: Agent,
        run_dir: str,
        offsets: Mapping[int, int],
        clock: Clock,
        feed: Feed,
        on_unreachable: OnUnreachable = keep_retrying,
        *,
        spot: bool = False,
    ) -> None:
        super().__init__(name=f"follow-{agent.host.node.index}", daemon=True)
        self._agent = agent
        self._run_dir = run_dir
        self._offsets = dict(offsets)
        self._clock = clock
        self._feed = feed
        self._on_unreachable = on_unreachable
        self._spot = spot
        self._stream: Stream | None = None
        self._contact_at = 0.0
        self._reported_at = 0.0
        self._lost = False
        self._refusals = 0

    def run(self) -> None:
        """Read until the final status arrives, a permanent error occurs, or the follower stops."""
        try:
            self._read()
        except BaseException as err:  # noqa: BLE001  re-raised by the follower, which would otherwise wait forever
            self._report_restored()
            self._feed.put(err)

    def hang_up(self) -> None:
        """Stop reading. The ranks keep running."""
        if self._stream is not None:
            with contextlib.suppress(ConnectError):
                self._stream.close()

    def _read(self) -> None:
        self._contact_at = self._clock.monotonic()
        while not self._feed.ended.is_set():
            try:
                if self._read_once():
                    return
                trouble: ConnectError | RemoteCommandError = self._no_output_error()
            except AuthRefusedError as err:
                trouble = self._refused_login(err)
            except ConnectError as err:
                if not err.retryable:
                    raise
                trouble = err
            if self._feed.ended.is_set():
                return
            self._report_lost(trouble)
            self._report_unreachable(trouble)
            self._pause()

    def _pause(self) -> None:
        if self._lost:
            self._feed.ended.wait(_RETRY_LOST_S)  # returns early when the follower stops
        else:
            self._clock.sleep(_RETRY_S)

    def _report_lost(self, trouble: ConnectError | RemoteCommandError) -> None:
        """Report lost contact once the node has been unreachable for `LOST_CONTACT_S`."""
        if self._lost or self._clock.monotonic() - self._contact_at <= LOST_CONTACT_S:
            return
        if isinstance(trouble, RemoteCommandError):
            raise trouble
        self._lost = True
        self._feed.put(Contact(self._agent.host.node.index, trouble))

    def _record_contact(self) -> None:
        """Record contact at every message and heartbeat. Without heartbeats, a silent run would appear to be lost."""
        self._contact_at = self._clock.monotonic()
        self._refusals = 0
        self._report_restored()

    def _report_restored(self) -> None:
        """Report that contact is restored, if it was lost."""
        if self._lost:
            self._lost = False
            self._feed.put(Contact(self._agent.host.node.index, None))

    def _refused_login(self, err: AuthRefusedError) -> AuthRefusedError:
        """Return the error if it may be temporary."""
        self._refusals += 1
        if self._refusals >= _REFUSALS:
            self._on_unreachable(self._agent.host.node, err)
            raise err
        return err

    def _report_unreachable(self, trouble: ConnectError | RemoteCommandError) -> None:
        now = self._clock.monotonic()
        reported = self._reported_at > self._contact_at
        every_s = _TELL_LOST_EVERY_S if self._lost else _TELL_EVERY_S
        if now - (self._reported_at if reported else self._contact_at) >= (every_s if reported else _SILENT_S):
            self._reported_at = now
            self._on_unreachable(self._agent.host.node, trouble)

    def _read_once(self) -> bool:
        """Read from one connection until it ends. Return True if the final status was received."""
        offsets = {str(rank): offset for rank, offset in self._offsets.items()}
        request = {"run_dir": self._run_dir, "offsets": offsets, **({"spot": True} if self._spot else {})}
        self._stream = stream = self._agent.stream("follow", request)
        answers = self._agent.answers(stream, "follow", self._record_contact)
        return any(self._feed.ended.is_set() or self._process(answer) for answer in answers)

    def _process(self, answer: Mapping[str, Any]) -> bool:
        """Process one message. Return True if the message contains the final status."""
        if "status" in answer:
            self._feed.put(Verdict.of(answer["status"], self._agent.host.node.index))
            return True
        if "transport" in answer:
            self._feed.put(NodeTransport.of(self._agent.host.node.index, answer["transport"]))
        elif "interruption" in answer:
            self._feed.put(SpotNotice.of(self._agent.host.node.index, answer["interruption"]))
        elif "rank" in answer:
            chunk = Chunk.of(answer)
            expected = self._offsets.get(chunk.rank)
            if chunk.offset != expected:
                node = self._agent.host.node.index
                where = f"from byte {chunk.offset} instead of byte {expected}"
                message = f"node {node} sent the log of rank {chunk.rank} {where}"
                raise RemoteCommandError(message)
            self._offsets[chunk.rank] = chunk.offset + chunk.size
            self._feed.put(chunk)
        return False

    def _no_output_error(self) -> RemoteCommandError:
        """Return the error for an agent that exited without output: it was killed, or Python is missing."""
        node = self._agent.host.node
        tail = [] if self._stream is None else self._stream.stderr.strip().splitlines()[-10:]
        message = f"node {node.index} ({node.instance_id}): the agent exited without output"
        return RemoteCommandError(message, tail=tail, hint="check that the node has python3 and free disk space")


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
