"""A node that exists only in memory: scripted answers, files as bytes, and a record of everything sent."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cloudgpu.errors import ConnectError, RemoteCommandError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.base import COMMAND_S, Result, Told, nobody
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.failure_text import checked, describe
from cloudgpu.ssh.openssh_command import ServerKey
from cloudgpu.ssh.transfer.patterns import matching
from cloudgpu.ssh.transfer.receive import OnSkipped, SkippedDownload


@dataclass(frozen=True)
class ScriptedResult:
    """The result of a scripted command. `error` is raised instead; `reply` computes stdout from stdin."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    error: ConnectError | None = None
    reply: Callable[[bytes], str] | None = None


@dataclass(frozen=True)
class Sent:
    """A command as it was sent."""

    wire: str
    shown: str
    stdin: bytes


class UnscriptedCommandError(RemoteCommandError):
    """The fake received a command that is not scripted, so the test or the code under test is wrong."""


@dataclass
class FakeHost:
    """An in-memory implementation of `ssh.base.Host`. Directories need not exist.

    Attributes:
        node: The node it stands for.
        files: Path -> content.
        modes: Path -> mode of files written by `put_bytes`.
        sent: Every command, in order.
        claimed: Claimed directories, in order.
        forwarded: Forwarded ports, in order; the local port is the same number.
        closed: True once the connection was closed.
        skipped: What `fetch_tree` reports as skipped.
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

    def on(self, pattern: str, *answers: ScriptedResult) -> "FakeHost":
        """Answer commands whose wire form contains a match of this regular expression.

        Several answers are given one after the other, the last one for ever. Later calls go before earlier ones.
        """
        self._script.insert(0, (re.compile(pattern, re.DOTALL), list(answers or (ScriptedResult(),))))
        return self

    def run(self, command: RemoteCommand, *, stdin: bytes = b"", timeout_s: float = COMMAND_S) -> Result:
        """Return the scripted answer.

        Raises:
            RemoteCommandError: The command failed or is not scripted.
            ConnectError: The script says so.
        """
        return checked(self.try_run(command, stdin=stdin, timeout_s=timeout_s))

    def try_run(self, command: RemoteCommand, *, stdin: bytes = b"", timeout_s: float = COMMAND_S) -> Result:
        """Return the scripted answer, whatever its exit code.

        Raises:
            RemoteCommandError: The command is not scripted.
            ConnectError: The script says so.
        """
        del timeout_s  # nothing takes time here
        answer = self._answer(command, stdin)
        if answer.error is not None:
            raise answer.error
        stdout = answer.reply(stdin) if answer.reply else answer.stdout
        return Result(describe(self.node), command.shown(), answer.exit_code, stdout, answer.stderr, 0.0)

    def stream(self, command: RemoteCommand, *, stdin: bytes = b"") -> "FakeStream":
        """Return the scripted answer as a stream. An `error` is raised after the last line.

        Raises:
            RemoteCommandError: The command is not scripted.
        """
        answer = self._answer(command, stdin)
        return FakeStream(answer, answer.reply(stdin) if answer.reply else answer.stdout)

    def put_bytes(self, content: bytes, path: str, *, mode: int = 0o600) -> None:
        """Keep a file."""
        self.files[path] = content
        self.modes[path] = mode

    def get_file(self, path: str, to: Path) -> None:
        """Write a kept file to disk.

        Raises:
            RemoteCommandError: There is no such file.
        """
        if path not in self.files:
            raise RemoteCommandError(f"{describe(self.node)}: cannot read {path}: No such file or directory")
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(self.files[path])

    def send_tree(self, source: Path, files: Sequence[str], to: str) -> int:
        """Keep exactly these files below `to`; returns the bytes that differ from what was there."""
        prefix = to.rstrip("/") + "/"
        contents = {prefix + name: _content(source / name) for name in files}
        changed = sum(len(content) for path, content in contents.items() if self.files.get(path) != content)
        for path in [path for path in self.files if path.startswith(prefix)]:
            del self.files[path]
        self.files.update(contents)
        return changed

    def claim_tree(self, to: str) -> None:
        """Note it."""
        self.claimed.append(to)

    def fetch_tree(
        self, source: str, patterns: Sequence[str], to: Path, on_skipped: OnSkipped | None = None
    ) -> list[str]:
        """Write the kept files that match to disk."""
        if on_skipped is not None:
            for skip in self.skipped:
                on_skipped(skip)
        prefix = source.rstrip("/") + "/"
        below = sorted(path.removeprefix(prefix) for path in self.files if path.startswith(prefix))
        names = matching(below, patterns)
        for name in names:
            self.get_file(prefix + name, to / name)
        return names

    def forward(
        self, remote_port: int, *, local: int = 0, near: bool = False, bound: bool = False, told: Told = nobody
    ) -> int:
        """Record the call. Nothing is opened: the port is treated as one of this machine."""
        del local, near, bound, told
        self.forwarded.append(remote_port)
        return remote_port

    def server_key(self) -> ServerKey:
        """Return a key that is unique to the node."""
        return ServerKey("ssh-ed25519", f"AAAA{self.node.index}")

    def close(self) -> None:
        """Note it."""
        self.closed = True

    def _answer(self, command: RemoteCommand, stdin: bytes) -> ScriptedResult:
        self.sent.append(Sent(command.wire(), command.shown(), stdin))
        for pattern, answers in self._script:
            if pattern.search(command.wire()):
                return answers.pop(0) if len(answers) > 1 else answers[0]
        raise UnscriptedCommandError(
            f"{describe(self.node)}: nothing is scripted for `{command.shown()}`", hint="add an `on(...)` for it"
        )


class FakeStream:
    """Implements `ssh.base.Stream`."""

    def __init__(self, answer: ScriptedResult, stdout: str) -> None:
        self._answer = answer
        self._stdout = stdout
        self.exit_code: int | None = None
        self.closed = False

    def lines(self, timeout_s: float | None = None) -> Iterator[str]:
        """Yield the scripted lines.

        Raises:
            ConnectError: The answer has an error, after its lines.
        """
        del timeout_s  # nothing takes time here
        lines = self._stdout.split("\n")
        for line in lines if lines[-1] else lines[:-1]:
            if self.closed:
                return
            yield line
        if self._answer.error is not None:
            raise self._answer.error
        self.exit_code = self._answer.exit_code

    @property
    def stderr(self) -> str:
        """The scripted standard error."""
        return self._answer.stderr

    def renew(self) -> None:
        """Do nothing: nothing takes time here."""

    def close(self) -> None:
        """Stop."""
        self.closed = True


def _content(path: Path) -> bytes:
    return os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
