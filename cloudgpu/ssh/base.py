"""Interface for an SSH connection to a node, implemented by `SshHost` and by the fake for tests, and error texts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from cloudgpu.errors import ConnectError, RemoteCommandError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.openssh import ServerKey
from cloudgpu.ssh.transfer.listing import OnSkipped, PlaceOf, same_place
from cloudgpu.text import command

CONNECT_S: Final = 15.0
"""Default time limit, in seconds, for connecting to a node that has booted."""
COMMAND_S: Final = 120.0
"""Default time limit, in seconds, for a command whose output is read all at once."""
OnBytes = Callable[[int, int], None]
"""Called during a transfer with the number of bytes transferred so far and the number of all bytes."""
FailureCallback = Callable[[ConnectError | None], None]
"""Called for each connection through a tunnel, with None on success or the error that prevented the connection."""
_UNRESOLVED = ("not known", "name resolution", "No address associated", "nodename nor servname")
"""Parts of the texts with which systems report a name that does not resolve."""
CHECK_NODE_HINT = "check that the node is still running: `cloudgpu status --refresh`"
"""Hint for a lost connection to a cloud node."""


def ignore_failure(_trouble: ConnectError | None) -> None:
    """Ignore the outcome of a tunnel connection."""


def ignore_bytes(_done: int, _total: int) -> None:
    """Ignore the progress of a transfer."""


@dataclass(frozen=True)
class Result:
    """Output and exit code of a finished command."""

    host: str
    shown: str
    exit_code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def ok(self) -> bool:
        """True if the exit code is 0."""
        return self.exit_code == 0

    def tail(self, count: int = 10) -> list[str]:
        """Return the last `count` lines of standard error, or of standard output if standard error is empty."""
        return (self.stderr.strip() or self.stdout.strip()).splitlines()[-count:]


class Stream(Protocol):
    """A running command whose output is read line by line."""

    exit_code: int | None
    """Exit code: 128 + n after signal n, 255 if the server sent no exit code. None until `lines` is exhausted."""

    @property
    def stderr(self) -> str:
        """Standard error received so far, truncated to the last MiB."""

    def lines(self, timeout_s: float | None = None) -> Iterator[str]:
        """Yield lines of standard output, without the newline, until the command exits.

        Raises:
            TimeLimitError: `timeout_s` seconds have passed since the start of the iteration or the last `renew`.
            RemoteCommandError: A line exceeds 32 MiB.
            ConnectError: The connection was lost; the command may still be running.
        """

    def renew(self) -> None:
        """Restart the time limit of `lines`."""

    def close(self) -> None:
        """Stop reading and close the channel, which also closes the remote command's standard output."""


class Host(Protocol):
    """An open connection to one node. Safe to use from several threads."""

    node: Node

    def run(self, command: RemoteCommand, *, stdin: bytes = b"", timeout_s: float = COMMAND_S) -> Result:
        """Run a command and wait for it.

        Raises:
            RemoteCommandError: The exit code is not 0, or the output exceeds 256 MiB. For a nonzero exit code, the
                error's `tail` contains the last 10 lines of output.
            ConnectError: The connection was lost, or the command ran for longer than `timeout_s`.
        """

    def try_run(self, command: RemoteCommand, *, stdin: bytes = b"", timeout_s: float = COMMAND_S) -> Result:
        """Run a command and return its result, whatever the exit code.

        Raises:
            RemoteCommandError: The output exceeds 256 MiB.
            ConnectError: The connection was lost, or the command ran for longer than `timeout_s`.
        """

    def stream(self, command: RemoteCommand, *, stdin: bytes = b"") -> Stream:
        """Start a command whose output is read line by line."""

    def put_bytes(self, content: bytes, path: str, *, mode: int = 0o600) -> None:
        """Write a remote file atomically."""

    def get_file(self, path: str, to: Path) -> None:
        """Download a file; the local write is atomic."""

    def send_tree(self, source: Path, files: Sequence[str], to: str, on_bytes: OnBytes = ignore_bytes) -> int:
        """Make a remote directory contain exactly these files from `source`; return the number of bytes sent.

        `files` contains paths relative to `source`.
        """

    def claim_tree(self, to: str) -> None:
        """Create a remote directory or adopt an empty one, so that `send_tree` may change its contents later."""

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
        """Download the matching files from a remote directory; return their relative paths.

        `on_skipped` is called for every entry that cannot be downloaded, and `place` returns the local path of a path.
        """

    def forward(
        self,
        remote_port: int,
        *,
        local: int = 0,
        near: bool = False,
        bound: bool = False,
        on_outcome: FailureCallback = ignore_failure,
    ) -> int:
        """Open a tunnel to a port on the node's loopback address and return the local port.

        Args:
            remote_port: Port on the node.
            local: Local port; 0 picks any free port.
            near: Use the next free local port if `local` is in use.
            bound: True if the remote service listens only on the node's loopback address.
            on_outcome: Called with the outcome of every connection.

        Raises:
            UsageError: The local port is in use or requires root.
            StateError: No local port is available.
        """

    def server_key(self) -> ServerKey:
        """Return the verified host key, for a `known_hosts` file.

        Raises:
            ConnectError: The connection was lost and cannot be reopened.
        """

    def close(self) -> None:
        """Close the connection."""


class TimeLimitError(ConnectError):
    """A command exceeded its time limit. The connection is still usable."""


def lost_connection_hint(node: Node) -> str:
    """Return the hint for a lost connection: check the node's status, or log in if the host is self-managed."""
    if not node.own:
        return CHECK_NODE_HINT
    return f"check that you can log in: {login_command(node)}"


def login_command(node: Node) -> str:
    """Return the command that logs in to a node."""
    return command("ssh", "-p", str(node.port), f"{node.user}@{node.address}")


def node_label(node: Node) -> str:
    """Return a node's label for messages. For a self-managed host, the label includes its name in the inventory."""
    what = f"node {node.index}" if node.index >= 0 else "the jump host"
    name = f"{node.zone}, " if node.own and node.zone else ""
    return f"{what} ({name}{node.user}@{node.address}:{node.port})"


def refused_connection(node: Node, to: str, reason: str, *, prohibited: bool) -> tuple[str, str]:
    """Return the message and hint for a connection that a node or jump host did not open for the caller."""
    who = node_label(node)
    if prohibited:
        where = "jump host" if node.index < 0 else "node"
        hint = (
            f"in the {where}'s sshd_config, set `AllowTcpForwarding yes` and remove a `DisableForwarding` or a "
            "`PermitOpen` that prevents it; its authorized_keys must not have `restrict` for this key"
        )
        return f"{who} cannot connect to {to}: it prohibits forwarding ({reason})", hint
    message = f"{who} cannot connect to {to}: {reason}"
    if any(words in reason for words in _UNRESOLVED):
        return message, f"use an address that resolves on {'the jump host' if node.index < 0 else 'the node'}"
    if node.own or node.index < 0:
        return message, "check that a program listens there, and that no firewall between the two hosts blocks it"
    return message, "check that a program listens there, and that the security group allows the connection"


def require_success(result: Result) -> Result:
    """Return the result if the command succeeded."""
    if result.ok:
        return result
    raise RemoteCommandError(
        f"{result.host}: `{result.shown}` failed with exit code {result.exit_code}",
        tail=result.tail(),
        hint="log in to investigate: `cloudgpu ssh`",
    )
