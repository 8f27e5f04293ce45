"""Processes that are forked by a fork server instead of being started anew; callers see no difference."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FORKED = ("cloudgpu", "cloudgpu.rehearsal.server", "cloudgpu.rehearsal.nodes.host")
_PACKET = 1 << 16
_FORK_SERVER = Path(__file__).with_name("fork_server.py")
_socket: list[str] = []
_real_spawn = os.posix_spawn


def _module(command: Any) -> str:
    """Which of our modules a command line runs; empty for any other."""
    if not isinstance(command, (list, tuple)) or len(command) < 3:
        return ""
    return command[2] if (command[0], command[1]) == (sys.executable, "-m") and command[2] in FORKED else ""


def _ask(command: list[Any], streams: list[int], env: Any, cwd: Any, *, own_session: bool) -> tuple[int, socket.socket]:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.connect(_socket[0])
    request = {
        "module": command[2],
        "argv": [os.fspath(part) for part in command[3:]],
        "cwd": os.fspath(cwd or Path.cwd()),
        "env": dict(os.environ if env is None else env),
        "own_session": own_session,
    }
    socket.send_fds(peer, [json.dumps(request).encode()], streams)
    return json.loads(peer.recv(_PACKET))["pid"], peer


class ForkedPopen(subprocess.Popen):
    """A `Popen` that forks our own modules from the fork server, and starts everything else as ever."""

    _peer: socket.socket | None = None

    def _execute_child(self, args: Any, *more: Any) -> None:
        if not (_socket and _module(args)):
            return super()._execute_child(args, *more)
        cwd, env = more[4], more[5]
        pipes = more[9:15]
        p2cread, _, _, c2pwrite, _, errwrite = pipes
        own = [number if given == -1 else given for number, given in ((0, p2cread), (1, c2pwrite), (2, errwrite))]
        self.pid, self._peer = _ask(args, own, env, cwd, own_session=False)
        self._child_created = True
        self._close_pipe_fds(*pipes)
        return None

    def _internal_poll(self, *given: Any, **named: Any) -> int | None:
        if self._peer is None:
            return super()._internal_poll(*given, **named)
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid == self.pid:
                self._handle_exitstatus(status)
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._peer is None:
            return super()._try_wait(wait_flags)
        try:
            answer = self._peer.recv(_PACKET, socket.MSG_DONTWAIT if wait_flags & os.WNOHANG else 0)
        except BlockingIOError:
            return 0, 0
        self._peer.close()
        assert answer, f"the fork server that forked {self.args} is gone"
        status = json.loads(answer)["status"]  # and now as `waitpid` tells it
        return self.pid, -status if status < 0 else status << 8


def _spawn(
    path: Any, command: list[Any], env: Any, *, file_actions: Any = (), setsid: bool = False, **more: Any
) -> int:
    """`os.posix_spawn`, but for our own modules."""
    if not _module(command):
        return _real_spawn(path, command, env, file_actions=file_actions, setsid=setsid, **more)
    streams, opened = [0, 1, 2], []
    for kind, first, *rest in file_actions:
        if kind == os.POSIX_SPAWN_OPEN:
            streams[first] = os.open(*rest)
            opened.append(streams[first])
        else:
            streams[rest[0]] = first
    pid, peer = _ask(command, streams, env, None, own_session=setsid)
    peer.close()
    for descriptor in opened:
        os.close(descriptor)
    return pid


def fork_from(path: str) -> None:
    """From now on this process has its own modules forked by the fork server that listens there."""
    _socket[:] = [path]
    subprocess.Popen = ForkedPopen
    os.posix_spawn = _spawn


@contextmanager
def fork_server(path: Path) -> Iterator[None]:
    """Run a fork server at `path` while the context lasts; rehearsal servers that we start are forked from it."""
    command = [sys.executable, str(_FORK_SERVER), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        _socket[:], os.posix_spawn = [str(path)], _spawn
        try:
            yield
        finally:
            os.posix_spawn = _real_spawn
            _socket.clear()
            process.stdin.close()
