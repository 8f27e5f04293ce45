"""Large transfers through the `ssh` program: its ciphers run in C, several times faster than paramiko's loop."""

import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from cloudgpu.errors import ConnectError
from cloudgpu.launch.inventory import Node
from cloudgpu.remote.command import Command
from cloudgpu.remote.outcome import describe
from cloudgpu.remote.ssh_command import ServerKey, ssh_argv, write_known_hosts

BULK_BYTES = 24 << 20
"""From this size on, what the faster stream saves exceeds the client's own handshake."""

_CHUNK_BYTES = 1 << 20
_CLIENT_FAILED = 255
_STDERR_KEPT_BYTES = 1 << 16


def client_found() -> bool:
    """Whether there is an OpenSSH client on the PATH."""
    return shutil.which("ssh") is not None


class ClientProcess:
    """A command on a node, run by an `ssh` process; reads like a `Session`."""

    def __init__(self, node: Node, key: Path, server_key: ServerKey, command: Command, stdin: Iterable[bytes]) -> None:
        self._who = describe(node)
        self._folder = tempfile.TemporaryDirectory(prefix="cloudgpu-ssh-")
        self.stderr = bytearray()
        self.exit_code = _CLIENT_FAILED
        known_hosts = write_known_hosts(Path(self._folder.name) / "known_hosts", node, server_key)
        argv = ssh_argv(node, key=key, known_hosts=known_hosts, command=(command.wire(),))
        # -F: no user configuration; a RemoteCommand or RequestTTY in it would spoil the stream.
        argv[1:1] = ["-F", "/dev/null", "-T", "-o", "BatchMode=yes", "-o", "ServerAliveCountMax=2"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)
        self._gathering = threading.Thread(target=self._gather, daemon=True)
        self._gathering.start()
        threading.Thread(target=self._feed, args=(stdin,), daemon=True).start()

    def output(self, timeout_s: float | None = None) -> Iterator[bytes]:
        """Standard output in pieces as they come. `ssh` itself notices a peer that fell silent.

        Raises:
            ConnectError: The connection was lost.
        """
        del timeout_s  # a transfer may take as long as bytes move
        process = self._process
        try:
            while process.stdout and (piece := process.stdout.read(_CHUNK_BYTES)):
                yield piece
            self.exit_code = process.wait()
        finally:
            process.kill()
            process.wait()
            self._gathering.join()
            for stream in (process.stdout, process.stderr):
                if stream:
                    stream.close()
            self._folder.cleanup()
        if self.exit_code == _CLIENT_FAILED:
            said = bytes(self.stderr).decode("utf-8", "replace").strip()
            raise ConnectError(f"lost the connection to {self._who}: {said or 'ssh gave no reason'}")

    def _gather(self) -> None:
        while self._process.stderr and (piece := self._process.stderr.read(_CHUNK_BYTES)):
            self.stderr += piece
            del self.stderr[:-_STDERR_KEPT_BYTES]

    def _feed(self, pieces: Iterable[bytes]) -> None:
        """Standard input to its end. A command that stops reading early is no error: its exit code tells."""
        pipe = self._process.stdin
        if pipe is None:
            return
        try:
            for piece in pieces:
                view = memoryview(piece)
                while view:
                    view = view[pipe.write(view) :]
            pipe.close()
        except (BrokenPipeError, ValueError):
            return
