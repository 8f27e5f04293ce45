"""Connect to a node that is not directly reachable: through the user's SSH jump host or a proxy command.

The jump host's key comes from pinned fingerprints or from the user's `known_hosts` files.
"""

import contextlib
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cloudgpu.errors import HostKeyError, SshSetupError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.handshake import Opened
from cloudgpu.ssh.known_hosts import SSH_PORT, authority_note, known_keys
from cloudgpu.text import command

_BASTION = -1
"""Node index of the jump host, which is not a node of the cluster."""
_TERMINATE_S = 5.0


def bastion(address: str, known_hosts: Sequence[Path], pinned: tuple[str, ...] = (), key: str = "") -> Node:
    """Return the jump host at the address `user@host` or `user@host:port`.

    Args:
        address: Login user, host name or IP address, and optional port.
        known_hosts: Files that contain the jump host's keys. Used only if `pinned` is empty.
        pinned: Fingerprints of the jump host's keys.
        key: Path of the private key; empty for the caller's default key.
    """
    user, _, server = address.partition("@")
    host, port = _split(server)
    keys = pinned or known_keys(host, port, known_hosts)
    if not keys:
        where = " or ".join(str(path) for path in known_hosts if path.is_file()) or str(known_hosts[0])
        connect = command("ssh", *([] if port == SSH_PORT else ["-p", str(port)]), f"{user}@{host}")
        note = authority_note(host, port, known_hosts)
        message = f"the host key of the bastion {host}:{port} is not in {where}{note}"
        raise HostKeyError(message, hint=f"connect once with `{connect}`, and verify the fingerprint")
    return Node(_BASTION, "bastion", host, port, user, keys, host, "", "", "", 0, simulated=False, key=key)


def _split(server: str) -> tuple[str, int]:
    """Split `host`, `host:port`, `[v6]` or `[v6]:port` into host and port."""
    if server.startswith("["):
        host, _, rest = server[1:].partition("]")
        return host, int(rest.removeprefix(":") or SSH_PORT)
    host, _, port = server.partition(":")
    return host, int(port or SSH_PORT)


class TcpConnector(Protocol):
    """A way to open TCP connections to hosts that the caller cannot reach. `SshHost` implements this protocol."""

    def open_tcp(self, address: str, port: int, timeout_s: float) -> Opened:
        """Open a connection to an address and port, as seen from the remote end of this connector.

        Raises:
            ConnectError: The connection failed.
        """


CarrierOf = Callable[[Node], TcpConnector | None]
"""Returns the connector for a node, or None if the node is directly reachable."""


@dataclass(frozen=True)
class CarryingCommand:
    """A proxy command, whose standard input and output are the connection, as with OpenSSH's `ProxyCommand`.

    Attributes:
        environ: Complete environment. Secrets belong here rather than in `argv`, which is visible in process lists.
    """

    argv: tuple[str, ...]
    environ: Mapping[str, str]

    def __repr__(self) -> str:
        return f"CarryingCommand(argv={self.argv!r})"


class ProgramCarrier:
    """A connector that starts a proxy command for every connection."""

    def __init__(self, command: Callable[[], CarryingCommand]) -> None:
        self._command = command

    def open_tcp(self, address: str, port: int, timeout_s: float) -> Opened:  # noqa: ARG002 - the program knows the destination
        """Start the proxy command and return the connection; closing the connection stops the command."""
        command = self._command()
        ours, theirs = socket.socketpair()
        try:
            process = subprocess.Popen(
                command.argv,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                env=dict(command.environ),
                start_new_session=True,  # so that Ctrl-C reaches only cloudgpu and does not close a run's connections
            )
        except OSError as err:
            ours.close()
            message = f"cannot start {command.argv[0]}: {err.strerror}"
            raise SshSetupError(message, hint="check that it is installed and executable") from err
        finally:
            theirs.close()
        return _ProcessSocket(ours, process)


class _ProcessSocket(socket.socket):
    """The local end of a proxy command's connection. Closing it stops the process."""

    def __init__(self, ours: socket.socket, process: subprocess.Popen[bytes]) -> None:
        super().__init__(fileno=ours.detach())
        self._process = process

    def close(self) -> None:
        super().close()
        threading.Thread(target=_stop, args=(self._process,), daemon=True).start()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM, so that the process can close its session, and SIGKILL after a grace period."""
    with contextlib.suppress(OSError):
        process.terminate()
    try:
        process.wait(_TERMINATE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
