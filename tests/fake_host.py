"""A node that exists only in memory: scripted results, files as bytes, and a record of every command sent."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cloudgpu.errors import ConnectError, RemoteCommandError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.base import (
    COMMAND_S,
    FailureCallback,
    OnBytes,
    Result,
    ignore_bytes,
    ignore_failure,
    node_label,
    require_success,
)
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.openssh import ServerKey
from cloudgpu.ssh.transfer.glob import path_matcher
from cloudgpu.ssh.transfer.listing import OnSkipped, PlaceOf, SkippedDownload, same_place


@dataclass(frozen=True)
class ScriptedResult:
    """The scripted result of a command. If `error` is set, it is raised instead. `reply` computes stdout from stdin."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    error: ConnectError | None = None
    reply: Callable[[bytes], str] | None = None


@dataclass(frozen=True)
class Sent:
    """A command, in the syntax of a POSIX shell, and its input."""

    text: str
    shown: str
    stdin: bytes


class UnscriptedCommandError(RemoteCommandError):
    """The fake received a command that is not scripted, so the test or the code under test is wrong."""


@dataclass
class FakeHost:
    """An in-memory implementation of `ssh.base.Host`. Directories need not exist.

    Attributes:
        node: The node that this host represents.
        files: File contents by path.
        modes: Modes of the files written by `put_bytes`, by path.
        sent: Every command, in order.
        claimed: Claimed directories, in order.
        forwarded: Forwarded ports, in order; the local port is the same number.
        closed: Whether the connection was closed.
        skipped: Files that `fetch_tree` reports as skipped.
    """

    node: Node
    files: dict[str, bytes] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    forwarded: list[int] = field(default_factory=list)
    claimed: list[str] = field(default_factory=list)
    closed: bool = False
    skipped: list[SkippedDownload] = field(default_factory=list)
    _script: list[tuple[re.Pattern[str], list[ScriptedResult]]] = field(default_factory=list)

    def on(self, pattern: str, *results: ScriptedResult) -> "FakeHost":
        """Script the results of commands whose text contains a match of this regular expression.

        The results are returned in order, and the last result is repeated. Later calls take precedence over earlier
        calls.
        """
        self._script.insert(0, (re.compile(pattern, re.DOTALL), list(results or (ScriptedResult(),))))
        return self

    def run(self, command: RemoteCommand, *, stdin: bytes = b"", timeout_s: float = COMMAND_S) -> Result:
        """Return the scripted result.

        Raises:
            RemoteCommandError: The command failed or is not scripted.
            ConnectError: The scripted result is an error.
        """
        return require_success(self.try_run(command, stdin=stdin, timeout_s=timeout_s))

    def try_run(self, command: RemoteCommand, *, stdin: bytes = b"", timeout_s: float = COMMAND_S) -> Result:
        """Return the scripted result, whatever its exit code.

        Raises:
            RemoteCommandError: The command is not scripted.
            ConnectError: The scripted result is an error.
        """
        del timeout_s  # scripted results take no time
        scripted = self._scripted(command, stdin)
        if scripted.error is not None:
            raise scripted.error
        stdout = scripted.reply(stdin) if scripted.reply else scripted.stdout
        return Result(node_label(self.node), command.shown(), scripted.exit_code, stdout, scripted.stderr, 0.0)

    def stream(self, command: RemoteCommand, *, stdin: bytes = b"") -> "FakeStream":
        """Return the scripted result as a stream. An `error` is raised after the last line.

        Raises:
            RemoteCommandError: The command is not scripted.
        """
        scripted = self._scripted(command, stdin)
        return FakeStream(scripted, scripted.reply(stdin) if scripted.reply else scripted.stdout)

    def put_bytes(self, content: bytes, path: str, *, mode: int = 0o600) -> None:
        """Store a file in memory."""
        self.files[path] = content
        self.modes[path] = mode

    def get_file(self, path: str, to: Path) -> None:
        """Write a stored file to disk.

        Raises:
            RemoteCommandError: The file does not exist.
        """
        if path not in self.files:
            raise RemoteCommandError(f"{node_label(self.node)}: cannot read {path}: No such file or directory")
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(self.files[path])

    def send_tree(self, source: Path, files: Sequence[str], to: str, on_bytes: OnBytes = ignore_bytes) -> int:
        """Replace the stored files below `to` with these; return the number of bytes in new and changed files."""
        prefix = to.rstrip("/") + "/"
        contents = {prefix + name: _content(source / name) for name in files}
        changed = sum(len(content) for path, content in contents.items() if self.files.get(path) != content)
        for path in [path for path in self.files if path.startswith(prefix)]:
            del self.files[path]
        self.files.update(contents)
        on_bytes(changed, changed)
        return changed

    def claim_tree(self, to: str) -> None:
        """Record the claimed directory."""
        self.claimed.append(to)

    def fetch_tree(
        self,
        source: str,
        patterns: Sequence[str],
        to: Path,
        on_skipped: OnSkipped | None = None,
        on_bytes: OnBytes = ignore_bytes,
        *,
        place: PlaceOf = same_place,
    ) -> list[str]:
        """Write the matching stored files to disk; return their relative paths."""
        if on_skipped is not None:
            for skip in self.skipped:
                on_skipped(skip)
        prefix = source.rstrip("/") + "/"
        below = sorted(path.removeprefix(prefix) for path in self.files if path.startswith(prefix))
        names = list(filter(path_matcher(patterns), below))
        for name in names:
            self.get_file(prefix + name, to / place(name))
        total = sum(len(self.files[prefix + name]) for name in names)
        on_bytes(total, total)
        return names

    def forward(
        self,
        remote_port: int,
        *,
        local: int = 0,
        near: bool = False,
        bound: bool = False,
        on_outcome: FailureCallback = ignore_failure,
    ) -> int:
        """Record the port and return it as the local port, without opening a tunnel."""
        del local, near, bound, on_outcome
        self.forwarded.append(remote_port)
        return remote_port

    def server_key(self) -> ServerKey:
        """Return a key that is unique to the node."""
        return ServerKey("ssh-ed25519", f"AAAA{self.node.index}")

    def close(self) -> None:
        """Record that the connection was closed."""
        self.closed = True

    def _scripted(self, command: RemoteCommand, stdin: bytes) -> ScriptedResult:
        self.sent.append(Sent(command.text(), command.shown(), stdin))
        for pattern, results in self._script:
            if pattern.search(command.text()):
                return results.pop(0) if len(results) > 1 else results[0]
        raise UnscriptedCommandError(
            f"{node_label(self.node)}: nothing is scripted for `{command.shown()}`", hint="script it with `on(...)`"
        )


class FakeStream:
    """A stream of a scripted result. Implements `ssh.base.Stream`."""

    def __init__(self, scripted: ScriptedResult, stdout: str) -> None:
        self._scripted = scripted
        self._stdout = stdout
        self.exit_code: int | None = None
        self.closed = False

    def lines(self, timeout_s: float | None = None) -> Iterator[str]:
        """Yield the scripted lines.

        Raises:
            ConnectError: The scripted result is an error, which is raised after the last line.
        """
        del timeout_s  # scripted results take no time
        lines = self._stdout.split("\n")
        for line in lines if lines[-1] else lines[:-1]:
            if self.closed:
                return
            yield line
        if self._scripted.error is not None:
            raise self._scripted.error
        self.exit_code = self._scripted.exit_code

    @property
    def stderr(self) -> str:
        """The scripted standard error."""
        return self._scripted.stderr

    def renew(self) -> None:
        """Do nothing, because a scripted result takes no time."""

    def close(self) -> None:
        """Stop yielding lines."""
        self.closed = True


def _content(path: Path) -> bytes:
    return os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
