"""Following a gang: every node's agent is read at once, logs are kept by byte offset, a lost connection is resumed."""

import contextlib
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudgpu.clock import Clock
from cloudgpu.errors import CloudGpuError, ConnectError
from cloudgpu.paths import RunPaths, unwritable
from cloudgpu.remote.base import Stream
from cloudgpu.run.agent import Agent

_LOST_CONTACT_S = 180.0
_RETRY_S = 1.0
_OTHERS_S = 10.0
"""How long the other nodes may take to agree once one says that the run failed: a dead node never will."""


@dataclass(frozen=True)
class Chunk:
    """Whole lines of one rank's log, and where in the log file they stand.

    Bytes that are not UTF-8 stand in `text` as surrogate escapes, so that the copy is the original, byte for byte.
    """

    rank: int
    offset: int
    size: int
    text: str


@dataclass(frozen=True)
class Verdict:
    """How the gang ended."""

    state: str
    exit_code: int | None = None
    rank: int | None = None
    node: int | None = None
    reason: str = ""

    @property
    def succeeded(self) -> bool:
        """Every rank ended with 0."""
        return self.state == "succeeded"

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> "Verdict":
        """Read the agent's status."""
        first = status.get("first_failure") or {}
        return cls(
            str(status["state"]),
            first.get("exit_code"),
            first.get("rank"),
            first.get("node_index"),
            str(first.get("reason", "")),
        )


class LogStore:
    """The ranks' logs on the caller's side; their length is the offset to go on from."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        try:
            paths.logs.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise unwritable(paths.logs, err) from err

    def offset(self, rank: int) -> int:
        """Bytes already here."""
        path = self._paths.log(rank)
        return path.stat().st_size if path.exists() else 0

    def add(self, chunk: Chunk) -> bool:
        """Append a chunk unless it is already here; whether it was new.

        Raises:
            StateError: The disk is full, or the log cannot be written.
        """
        if chunk.offset < self.offset(chunk.rank):
            return False
        try:
            with self._paths.log(chunk.rank).open("ab") as log:
                log.write(chunk.text.encode(errors="surrogateescape"))
        except OSError as err:
            raise unwritable(self._paths.logs, err) from err
        return True

    def lines(self, rank: int) -> list[str]:
        """Everything of one rank that is already here."""
        path = self._paths.log(rank)
        return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []

    def tail(self, rank: int, count: int = 10) -> list[str]:
        """The last lines of one rank."""
        return tail(self._paths.log(rank), count)


def tail(path: Path, count: int) -> list[str]:
    """The last lines of a file; empty when there is none."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - 65536))
        return file.read().decode(errors="replace").splitlines()[-count:]


def follow(
    agents: Sequence[Agent],
    ranks: Mapping[int, Sequence[int]],
    run_dirs: Mapping[int, str],
    logs: LogStore,
    clock: Clock,
) -> Iterator[Chunk | Verdict]:
    """Yield new chunks of every rank as they come and, last, one verdict.

    `ranks` and `run_dirs` are by node index. Abandoning the iterator changes nothing on the nodes.

    Raises:
        ConnectError: A node could not be reached again for three minutes; the run may still go on there.
        RemoteCommandError: An agent answered with an error.
        StateError: The logs cannot be written here.
    """
    feed: queue.Queue[Chunk | Verdict | CloudGpuError] = queue.Queue(maxsize=1000)
    stop = threading.Event()
    readers = [_Reader(agent, ranks[agent.host.node.index], run_dirs, logs, clock, feed, stop) for agent in agents]
    for reader in readers:
        reader.start()
    try:
        yield from _merged(feed, len(readers), logs)
    finally:
        stop.set()
        for reader in readers:
            reader.hang_up()


def _merged(
    feed: "queue.Queue[Chunk | Verdict | CloudGpuError]", readers: int, logs: LogStore
) -> Iterator[Chunk | Verdict]:
    verdicts: list[Verdict] = []
    while len(verdicts) < readers:
        failed = any(not one.succeeded for one in verdicts)
        try:
            item = feed.get(timeout=_OTHERS_S if failed else None)
        except queue.Empty:
            break
        if isinstance(item, CloudGpuError):
            if failed:
                break
            raise item
        if isinstance(item, Verdict):
            verdicts.append(item)
        elif logs.add(item):
            yield item
    # All agents agree on the first failure; a node that lost its agent says less, so prefer one that names a rank.
    yield next((v for v in verdicts if v.rank is not None), min(verdicts, key=lambda v: v.succeeded))


class _Reader(threading.Thread):
    """Reads one node's agent into the feed, reconnecting from the offset it has reached."""

    def __init__(  # noqa: PLR0917
        self,
        agent: Agent,
        ranks: Sequence[int],
        run_dirs: Mapping[int, str],
        logs: LogStore,
        clock: Clock,
        feed: "queue.Queue[Chunk | Verdict | CloudGpuError]",
        stop: threading.Event,
    ) -> None:
        super().__init__(name=f"follow-{agent.host.node.index}", daemon=True)
        self._agent = agent
        self._run_dir = run_dirs[agent.host.node.index]
        self._offsets = {rank: logs.offset(rank) for rank in ranks}
        self._clock = clock
        self._feed = feed
        self._ended = stop
        self._stream: Stream | None = None
        self._last_seen = 0.0

    def run(self) -> None:
        """Until the verdict, an error that repeats, or the iterator is abandoned."""
        self._last_seen = self._clock.monotonic()
        while not self._ended.is_set():
            try:
                if self._read_once():
                    return
            except ConnectError as err:
                if self._clock.monotonic() - self._last_seen > _LOST_CONTACT_S:
                    self._feed.put(err)
                    return
            except CloudGpuError as err:
                self._feed.put(err)
                return
            if not self._ended.is_set():
                self._clock.sleep(_RETRY_S)

    def hang_up(self) -> None:
        """Stop reading; the node's ranks go on."""
        if self._stream is not None:
            with contextlib.suppress(ConnectError):
                self._stream.close()

    def _read_once(self) -> bool:
        """Read one connection's worth; whether the verdict came."""
        offsets = {str(rank): offset for rank, offset in self._offsets.items()}
        self._stream = self._agent.stream("follow", {"run_dir": self._run_dir, "offsets": offsets})
        for answer in self._agent.answers(self._stream):
            if self._ended.is_set():
                return True
            self._last_seen = self._clock.monotonic()
            if "status" in answer:
                self._feed.put(Verdict.of(answer["status"]))
                return True
            self._take(answer)
        return False

    def _take(self, answer: Mapping[str, Any]) -> None:
        if "rank" not in answer:
            return
        chunk = Chunk(int(answer["rank"]), int(answer["offset"]), int(answer["bytes"]), str(answer["data"]))
        self._offsets[chunk.rank] = chunk.offset + chunk.size
        self._feed.put(chunk)
