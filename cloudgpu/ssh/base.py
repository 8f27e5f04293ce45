"""What a connection to a node can do, whatever carries it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from cloudgpu.errors import ConnectError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.command import Command
from cloudgpu.ssh.openssh_command import ServerKey
from cloudgpu.ssh.transfer.receive import OnSkipped

COMMAND_S: Final = 120.0
"""Time limit of a command whose output is read as a whole, unless the caller gives another one, seconds."""
Told = Callable[[ConnectError | None], None]
"""Hears of every connection through a tunnel: why it did not come about, or None when it did."""


def nobody(_trouble: ConnectError | None) -> None:
    """Nobody listens to what a tunnel tells."""


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    host: str
    shown: str
    exit_code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether it ended with 0."""
        return self.exit_code == 0

    def tail(self, count: int = 10) -> list[str]:
        """The last lines of standard error, else of standard output."""
        return (self.stderr.strip() or self.stdout.strip()).splitlines()[-count:]


class Stream(Protocol):
    """A command that runs while its output is read."""

    exit_code: int | None
    """None until the lines have ended; 128 + n when signal n ended the command."""

    @property
    def stderr(self) -> str:
        """What it wrote to standard error so far, the last MiB of it."""

    def lines(self, timeout_s: float | None = None) -> Iterator[str]:
        """Lines of standard output as they come, without their newline; ends when the command ends.

        Raises:
            TimeLimitError: `timeout_s` passed since the start or the last `renew`.
            ConnectError: The connection was lost; the command may still run.
        """

    def renew(self) -> None:
        """Start the time limit of `lines` again."""

    def close(self) -> None:
        """Stop reading. The remote command sees its standard output closed."""


class Host(Protocol):
    """An open connection to one node. Safe to use from several threads."""

    node: Node

    def run(self, command: Command, *, stdin: bytes = b"", timeout_s: float = COMMAND_S) -> Result:
        """Run it and wait.

        Raises:
            RemoteCommandError: Exit code other than 0; shows the last 10 lines.
            ConnectError: The connection was lost or `timeout_s` passed.
        """

    def try_run(self, command: Command, *, stdin: bytes = b"", timeout_s: float = COMMAND_S) -> Result:
        """Like `run`, but a bad exit code is in the result."""

    def stream(self, command: Command, *, stdin: bytes = b"") -> Stream:
        """Start it and read its output line by line."""

    def put_bytes(self, content: bytes, path: str, *, mode: int = 0o600) -> None:
        """Write a file, atomically."""

    def get_file(self, path: str, to: Path) -> None:
        """Fetch a file, atomically on this side."""

    def send_tree(self, source: Path, files: Sequence[str], to: str) -> int:
        """Make the remote directory hold exactly these files of `source` (relative paths); returns bytes sent."""

    def claim_tree(self, to: str) -> None:
        """Make a new or empty remote directory one that `send_tree` may change, whoever fills it until then."""

    def fetch_tree(
        self, source: str, patterns: Sequence[str], to: Path, on_skipped: OnSkipped | None = None
    ) -> list[str]:
        """Fetch what matches below a remote directory; returns the relative paths. What is skipped is named."""

    def forward(
        self, remote_port: int, *, local: int = 0, near: bool = False, bound: bool = False, told: Told = nobody
    ) -> int:
        """Open a tunnel to a port on the node's loopback; returns the local port.

        Args:
            remote_port: Where to.
            local: The port on this side; 0 is any.
            near: Take the next free one where that is in use.
            bound: What listens there does so on the node's own loopback address and on no other.
            told: Hears of every connection.

        Raises:
            UsageError: The local port is in use.
        """

    def server_key(self) -> ServerKey:
        """The host key that was verified, whole, for a `known_hosts` file.

        Raises:
            ConnectError: The connection was lost, and it cannot be dialled.
        """

    def close(self) -> None:
        """Hang up."""
