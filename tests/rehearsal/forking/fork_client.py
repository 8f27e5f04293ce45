"""Replacements for `subprocess.Popen` and `os.posix_spawn` that fork our own modules from a fork server."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FORKED_MODULES = ("cloudgpu", "cloudgpu.rehearsal.server", "cloudgpu.rehearsal.nodes.host")
_MAX_PACKET_BYTES = 1 << 16
_START_S = 120
_FORK_SERVER = Path(__file__).with_name("fork_server.py")
_socket: list[str] = []
_real_posix_spawn = os.posix_spawn


@dataclass(frozen=True)
class _Command:
    """A command line that the fork server can run: one of the forked modules, or a program after `-c`.

    Attributes:
        network: Path of the network namespace that `nsenter` enters first; empty for that of the caller.
    """

    module: str
    argv: tuple[str, ...]
    network: str = ""


def _forked_command(command: Any) -> _Command | None:
    """Return the command that the fork server runs, or None if the command line starts another program."""
    if not isinstance(command, (list, tuple)) or len(command) < 3:
        return None
    words = [os.fspath(part) for part in command]
    network = ""
    if words[0] == "nsenter" and words[1].startswith("--net=") and words[2] == "--":
        network, words = words[1].removeprefix("--net="), words[3:]
    if len(words) < 3 or words[0] != sys.executable:
        return None
    if (words[1] == "-m" and words[2] in FORKED_MODULES) or (words[1] == "-c" and network):
        return _Command(words[2] if words[1] == "-m" else "-c", tuple(words[3 if words[1] == "-m" else 2 :]), network)
    return None


def _request_fork(
    command: _Command, streams: list[int], env: Any, cwd: Any, *, new_session: bool
) -> tuple[int, socket.socket]:
    """Return the process ID, and the connection on which the server sends the exit status."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.connect(_socket[0])
    request = {
        **asdict(command),
        "cwd": os.fspath(cwd or Path.cwd()),
        "env": dict(os.environ if env is None else env),
        "new_session": new_session,
    }
    socket.send_fds(peer, [json.dumps(request).encode()], streams)
    return json.loads(peer.recv(_MAX_PACKET_BYTES))["pid"], peer


class ForkedPopen(subprocess.Popen):
    """A `Popen` that forks our own modules from the fork server and starts all other programs as usual."""

    _peer: socket.socket | None = None

    def _execute_child(self, args: Any, *more: Any) -> None:
        command = _forked_command(args) if _socket else None
        if command is None:
            return super()._execute_child(args, *more)
        cwd, env = more[4], more[5]
        pipes = more[9:15]
        p2cread, _, _, c2pwrite, _, errwrite = pipes
        streams = [number if pipe == -1 else pipe for number, pipe in ((0, p2cread), (1, c2pwrite), (2, errwrite))]
        self.pid, self._peer = _request_fork(command, streams, env, cwd, new_session=more[20])
        self._child_created = True
        self._close_pipe_fds(*pipes)
        return None

    def _internal_poll(self, *args: Any, **kwargs: Any) -> int | None:
        if self._peer is None:
            return super()._internal_poll(*args, **kwargs)
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid == self.pid:
                self._handle_exitstatus(status)
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._peer is None:
            return super()._try_wait(wait_flags)
        try:
            response = self._peer.recv(_MAX_PACKET_BYTES, socket.MSG_DONTWAIT if wait_flags & os.WNOHANG else 0)
        except BlockingIOError:
            return 0, 0
        self._peer.close()
        assert response, f"the fork server of {self.args} has exited"
        status = json.loads(response)["status"]  # converted to the format of `waitpid`
        return self.pid, -status if status < 0 else status << 8


def _posix_spawn(
    path: Any, command: list[Any], env: Any, *, file_actions: Any = (), setsid: bool = False, **more: Any
) -> int:
    """Fork our own modules from the fork server, and pass all other programs to the real `os.posix_spawn`."""
    forked = _forked_command(command)
    if forked is None:
        return _real_posix_spawn(path, command, env, file_actions=file_actions, setsid=setsid, **more)
    streams, opened = [0, 1, 2], []
    for kind, first, *rest in file_actions:
        if kind == os.POSIX_SPAWN_OPEN:
            streams[first] = os.open(*rest)
            opened.append(streams[first])
        else:
            streams[rest[0]] = first
    pid, peer = _request_fork(forked, streams, env, None, new_session=setsid)
    peer.close()
    for descriptor in opened:
        os.close(descriptor)
    return pid


def use_fork_server(path: str) -> None:
    """Fork our own modules from the fork server at `path` for the rest of this process."""
    _socket[:] = [path]
    subprocess.Popen = ForkedPopen
    os.posix_spawn = _posix_spawn


@contextmanager
def run_fork_server(path: Path) -> Iterator[Path]:
    """Run a fork server until the block ends. It listens at `path` as soon as it has imported everything."""
    command = [sys.executable, str(_FORK_SERVER), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, "LC_ALL": "C.UTF-8"}) as process:
        try:
            yield path
        finally:
            process.stdin.close()


@contextmanager
def forked_by(path: Path) -> Iterator[None]:
    """Use the fork server at `path` until the block ends, also for the servers that `os.posix_spawn` starts."""
    deadline = time.monotonic() + _START_S
    while not path.exists():
        assert time.monotonic() < deadline, f"the fork server at {path} did not start"
        time.sleep(0.02)
    _socket[:], os.posix_spawn = [str(path)], _posix_spawn
    try:
        yield
    finally:
        os.posix_spawn = _real_posix_spawn
        _socket.clear()
