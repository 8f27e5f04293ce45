"""Ways to open a TCP connection to a node that is not directly reachable: an SSH jump host or a proxy command."""

import contextlib
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from cloudgpu.errors import SshSetupError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.handshake import Opened

_TERMINATE_S = 5.0


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
