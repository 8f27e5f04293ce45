"""`exec`: run a command on several nodes concurrently. Unreachable nodes are reported along with the results."""

import codecs
import contextlib
import queue
import re
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cloudgpu.app.ssh import ConnectionsByNode
from cloudgpu.clock import Clock
from cloudgpu.errors import CloudGpuError, ConnectError, RemoteCommandError, UsageError
from cloudgpu.node import connected_command
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.connection import SshHost
from cloudgpu.ssh.session import CommandSession
from cloudgpu.text import index_range_text

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_STOP_S = 3.0
"""Seconds to wait for each node to confirm that the command has stopped, before the connections are closed."""
_LOOK_S = 0.2

OnLine = Callable[[int, bool, str], None]
"""Callback for each output line as it arrives: node index, True for standard error, text."""


@dataclass(frozen=True)
class NodeOutcome:
    """The result of the command on one node.

    Attributes:
        exit_code: Exit code of the command, or None if it is unknown.
        stdout: Standard output; empty if the lines were passed to a callback.
        stderr: Standard error; empty if the lines were passed to a callback.
        error: Reason why the command could not be run or its exit code is unknown; otherwise empty.
    """

    node: int
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    error: str = ""
    hint: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the node's entry in the documented output of `exec --json`."""
        return {
            "node": self.node,
            "exit_code": self.exit_code,
            "stdout": self.stdout,
            "stderr": self.stderr,
            "seconds": round(self.seconds, 3),
            "error": self.error,
            "hint": self.hint,
        }


def parse_node_indices(text: str, nodes: int) -> tuple[int, ...]:
    """Parse node indices such as `0,2-3`; an empty string selects all nodes.

    Raises:
        UsageError: The text is invalid, or the cluster has no such node.
    """
    if not text:
        return tuple(range(nodes))
    indices: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise UsageError(
                f"--node {text}: {part.strip() or 'an empty entry'} is not a node index",
                hint="use indices and ranges such as --node 0,2-3",
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last >= nodes:
            message = f"--node {text}: {part.strip()} is not an index or ascending range; {index_range_text(nodes)}"
            raise UsageError(message, hint="use indices and ranges such as --node 0,2-3")
        indices |= set(range(first, last + 1))
    return tuple(sorted(indices))


def shell_line(words: Sequence[str]) -> str:
    """Return the shell line to run on the nodes: a single word unchanged, several words quoted.

    Raises:
        UsageError: The command is empty.
    """
    if not any(words):
        message = "no command specified"
        raise UsageError(message, hint="put the command after --, for example: cloudgpu exec NAME -- nvidia-smi -L")
    return words[0] if len(words) == 1 else shlex.join(words)


def execute(
    reached: ConnectionsByNode, line: str, clock: Clock, *, stdin: bytes | None = None, on_line: OnLine | None = None
) -> tuple[NodeOutcome, ...]:
    """Run a shell line on all nodes concurrently and wait for all of them. Ctrl-C stops the command on every node.

    Args:
        reached: Each node's connection, or the error if the node is unreachable.
        line: The shell line.
        clock: Clock that measures the duration.
        stdin: Standard input of the command on every node, or None.
        on_line: Callback for each output line as it arrives. Calls from different threads are serialized.
    """
    source = Path(connected_command.__file__).read_text(encoding="utf-8")
    command = RemoteCommand("python3", "-I", "-S", "-c", source, line, *(() if stdin is None else ("stdin",)))
    hosts = {index: host for index, host in reached.items() if isinstance(host, SshHost)}
    results: queue.SimpleQueue[NodeOutcome | BaseException] = queue.SimpleQueue()
    running = [_Running(index, host, clock, _serial(on_line)) for index, host in hosts.items()]
    for node_run in running:
        threading.Thread(target=node_run.run, args=(command, stdin or b"", results), daemon=True).start()
    try:
        outcomes = {outcome.node: outcome for outcome in _all(results, len(running))}
    except KeyboardInterrupt:
        _stop_all(running, results)
        raise
    unreached = {index: _unreached(index, err) for index, err in reached.items() if isinstance(err, CloudGpuError)}
    return tuple({**outcomes, **unreached}[index] for index in reached)


def exit_code(outcomes: Sequence[NodeOutcome]) -> int:
    """Return the exit code of `exec`, which is 0 if the command succeeded on all nodes.

    An unreachable node takes precedence over a failed command.
    """
    if any(outcome.exit_code is None for outcome in outcomes):
        return ConnectError.exit_code
    return RemoteCommandError.exit_code if any(outcome.exit_code for outcome in outcomes) else 0


def as_json(cluster: str, line: str, outcomes: Sequence[NodeOutcome]) -> Mapping[str, Any]:
    """Return the documented output of `exec --json`."""
    nodes = [outcome.as_json() for outcome in outcomes]
    return {"cluster": cluster, "command": line, "exit_code": exit_code(outcomes), "nodes": nodes}


class _Running:
    """The command on one node, run in a separate thread."""

    def __init__(self, index: int, host: SshHost, clock: Clock, on_line: OnLine | None) -> None:
        self._index = index
        self._host = host
        self._clock = clock
        self._on_line = on_line
        self._session: CommandSession | None = None
        self._ended = False

    def run(
        self, command: RemoteCommand, stdin: bytes, results: "queue.SimpleQueue[NodeOutcome | BaseException]"
    ) -> None:
        """Run the command and put its outcome, or an unexpected exception, into the queue."""
        started = self._clock.monotonic()
        try:
            outcome = self._outcome(command, stdin)
        except CloudGpuError as err:
            outcome = _unreached(self._index, err)
        except BaseException as bug:  # noqa: BLE001 - raised again in the waiting thread
            results.put(bug)
            return
        results.put(replace(outcome, seconds=self._clock.monotonic() - started))

    def end(self) -> None:
        """Stop the command on its node."""
        self._ended = True
        if self._session is not None:
            self._session.end()

    def _outcome(self, command: RemoteCommand, stdin: bytes) -> NodeOutcome:
        session = self._session = self._host.start(command, stdin)
        if self._ended:
            session.end()
        out, err = _Text(self._index, self._on_line, error=False), _Text(self._index, self._on_line, error=True)
        session.on_stderr = err.add
        try:
            for piece in session.output():
                out.add(piece)
        except ConnectError as lost:
            return NodeOutcome(self._index, None, out.end(), err.end(), error=lost.message, hint=lost.hint)
        return NodeOutcome(self._index, session.exit_code, out.end(), err.end())


class _Text:
    """A node's output stream. Passes each line to the callback or, without a callback, collects the text."""

    def __init__(self, index: int, on_line: OnLine | None, *, error: bool) -> None:
        self._index, self._on_line, self._error = index, on_line, error
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._parts: list[str] = []
        self._rest = ""

    def add(self, piece: bytes) -> None:
        """Add received bytes."""
        self._take(self._decoder.decode(piece))

    def end(self) -> str:
        """Finish the stream and return the collected text, which is empty if there is a callback."""
        self._take(self._decoder.decode(b"", final=True))
        if self._rest and self._on_line is not None:
            self._on_line(self._index, self._error, self._rest)
        self._rest = ""
        return "".join(self._parts)

    def _take(self, text: str) -> None:
        if self._on_line is None:
            self._parts.append(text)
            return
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._on_line(self._index, self._error, line)


def _serial(on_line: OnLine | None) -> OnLine | None:
    """Return the callback, serialized by a lock."""
    if on_line is None:
        return None
    lock = threading.Lock()

    def emit_line(index: int, error: bool, line: str) -> None:  # noqa: FBT001 - the signature of OnLine
        with lock:
            on_line(index, error, line)

    return emit_line


def _all(results: "queue.SimpleQueue[NodeOutcome | BaseException]", count: int) -> Iterator[NodeOutcome]:
    """Yield the outcomes as they arrive. The short timeout keeps the wait interruptible by Ctrl-C on all platforms."""
    while count:
        try:
            item = results.get(timeout=_LOOK_S)
        except queue.Empty:
            continue
        if isinstance(item, BaseException):
            raise item
        count -= 1
        yield item


def _stop_all(running: Sequence[_Running], results: "queue.SimpleQueue[NodeOutcome | BaseException]") -> None:
    """Stop the command on every node and wait briefly for confirmation."""
    for node_run in running:
        threading.Thread(target=node_run.end, daemon=True).start()
    with contextlib.suppress(queue.Empty):
        for _ in running:
            results.get(timeout=_STOP_S)


def _unreached(index: int, err: CloudGpuError) -> NodeOutcome:
    return NodeOutcome(index, error=err.message, hint=err.hint)
