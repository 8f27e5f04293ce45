"""What brings a connection to a node that is not reached straight: another SSH server, or a program's own pipes."""

import contextlib
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from cloudgpu.errors import ConnectError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.handshake import Opened

_LAST_WORDS_S = 5.0


class Carrier(Protocol):
    """Opens connections to where the caller itself does not get. An `SshHost` is one."""

    def open_tcp(self, address: str, port: int, timeout_s: float) -> Opened:
        """A connection to an address and port as seen from there.

        Raises:
            ConnectError: It did not come about.
        """


CarrierOf = Callable[[Node], Carrier | None]
"""What leads to a node; None where the caller gets there straight."""


@dataclass(frozen=True)
class CarryingCommand:
    """A program whose standard input and output are a connection, as OpenSSH's `ProxyCommand` has it.

    Attributes:
        environ: Its whole environment. What must not be seen in a list of processes goes here, not into `argv`.
    """

    argv: tuple[str, ...]
    environ: Mapping[str, str]

    def __repr__(self) -> str:
        return f"CarryingCommand(argv={self.argv!r})"


class ProgramCarrier:
    """Starts a program for every connection."""

    def __init__(self, command: Callable[[], CarryingCommand]) -> None:
        self._command = command

    def open_tcp(self, address: str, port: int, timeout_s: float) -> Opened:  # noqa: ARG002 - the program knows where to
        """A connection through a program of its own, which ends with it.

        Raises:
            ConnectError: The program cannot be started.
        """
        command = self._command()
        ours, theirs = socket.socketpair()
        try:
            process = subprocess.Popen(
                command.argv,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                env=dict(command.environ),
                start_new_session=True,  # Ctrl-C is ours to answer: the run's connections must not end by it
            )
        except OSError as err:
            ours.close()
            message = f"{command.argv[0]} cannot be started: {err.strerror}"
            raise ConnectError(message, hint="is it installed, and may it be run?") from err
        finally:
            theirs.close()
        return _Carried(ours, process)


class _Carried(socket.socket):
    """Our end of a program's connection: the program goes with it."""

    def __init__(self, ours: socket.socket, process: subprocess.Popen[bytes]) -> None:
        super().__init__(fileno=ours.detach())
        self._process = process

    def close(self) -> None:
        super().close()
        threading.Thread(target=_end, args=(self._process,), daemon=True).start()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let it take its leave, so that its session ends with it; then insist."""
    with contextlib.suppress(OSError):
        process.terminate()
    try:
        process.wait(_LAST_WORDS_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
