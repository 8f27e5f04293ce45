"""A fork server for commands, rehearsal servers and node hosts: a process that has already imported their modules.

`python fork_server.py SOCKET` listens on a Unix socket. A request is one packet on its own connection: JSON `{"module",
"argv", "network", "cwd", "env", "new_session"}`, with standard input, output and error as descriptors. The first
response is `{"pid"}`, and the second, after the process has exited, is `{"status"}`, negative for a signal. A forked
process behaves like `python -m MODULE`, with the same `main`, environment, streams, signal handlers and exit, but
starts about a second faster. With the module `-c`, it behaves like `python -c PROGRAM`.
"""

import atexit
import contextlib
import ctypes
import fcntl
import functools
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import termios
import threading
import traceback
from pathlib import Path

from preload import SERVERS, preload

os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"  # read when moto is imported

ENTRY_POINTS = {
    "cloudgpu": ("cloudgpu.cli.main", "entry"),
    "cloudgpu.rehearsal.server": ("cloudgpu.rehearsal.server.main", "main"),
    "cloudgpu.rehearsal.nodes.host": ("cloudgpu.rehearsal.nodes.host", "main"),
}
CLONE_NEWNET = 0x40000000
DEFAULT_SIGNALS = (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM)
_MAX_PACKET_BYTES = 1 << 20


class ForkServer:
    """The server. It has a single thread, so that no lock is held at a fork."""

    def __init__(self, path):
        self._path = path
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Clients wait until the path exists, so the socket listens before it gets this name.
        self._listener.bind(f"{path}.new")
        self._listener.listen(64)
        Path(f"{path}.new").rename(path)
        self._running = True

    def serve(self):
        """Serve until standard input is closed, which also happens when the parent process dies."""
        self._selector.register(self._listener, selectors.EVENT_READ, lambda _: self._fork())
        self._selector.register(sys.stdin, selectors.EVENT_READ, lambda _: self._stop())
        while self._running:
            for key, _ in self._selector.select():
                key.data(key.fileobj)

    def _stop(self):
        self._running = False

    def _fork(self):
        peer, _ = self._listener.accept()
        try:
            packet, streams, _, _ = socket.recv_fds(peer, _MAX_PACKET_BYTES, 3)
        except OSError:
            packet = b""
        if not packet:  # the client was killed before it sent a request
            return peer.close()
        request = json.loads(packet)
        pid = os.fork()
        if not pid:
            self._close_inherited(peer)
            run_module(streams, path=self._path, **request)
        for stream in streams:
            os.close(stream)
        with contextlib.suppress(OSError):  # the forked process runs on if its client has been killed
            peer.send(json.dumps({"pid": pid}).encode())
        self._selector.register(
            os.pidfd_open(pid), selectors.EVENT_READ, functools.partial(self._report_exit, pid, peer)
        )
        return None

    def _close_inherited(self, peer):
        """Close the descriptors that a forked process inherits from the server."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, functools.partial):
                key.data.args[1].close()
                os.close(key.fd)
        self._selector.close()
        self._listener.close()
        peer.close()

    def _report_exit(self, pid, peer, pidfd):
        self._selector.unregister(pidfd)
        os.close(pidfd)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(OSError), peer:  # the client may have exited
            peer.send(json.dumps({"status": status}).encode())


def run_module(streams, *, path, module, argv, network, cwd, env, new_session):
    """Run a module in this process as a new interpreter would, and exit."""
    code = 70
    try:
        if new_session:
            os.setsid()
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
        for stream in set(streams) - {0, 1, 2}:
            os.close(stream)
        if new_session and os.isatty(1):
            fcntl.ioctl(1, termios.TIOCSCTTY, 0)  # the terminal controls this process, as after a login
        for number in DEFAULT_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(env)
        os.chdir(cwd)
        if network:
            enter_network(network)
        reopen_streams()
        # The processes that it starts are forked too. This folder is on the path of `python fork_server.py`.
        importlib.import_module("fork_client").use_fork_server(path)
        if module == "-c":
            sys.argv = ["-c", *argv[1:]]
            exec(compile(argv[0], "<string>", "exec"), {"__name__": "__main__"})
            exit_interpreter(0)
        sys.argv = [module, *argv]
        main_module, name = ENTRY_POINTS[module]
        main = getattr(sys.modules[main_module], name)
        code = main() if name == "entry" else main(argv)
    except SystemExit as err:
        code = err.code
    except BaseException:  # noqa: BLE001 - a forked child must not return to the loop of the server
        traceback.print_exc()
        code = 1
    exit_interpreter(code)


def enter_network(path):
    """Enter a network namespace as `nsenter --net=PATH` does. `os.setns` needs Python 3.12."""
    with Path(path).open() as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)


def reopen_streams():
    """Reopen the standard streams as `python -u` opens them."""
    sys.stdin = open(0, closefd=False, encoding="utf-8")  # noqa: SIM115 - open until the process exits
    sys.stdout = open(1, "w", closefd=False, encoding="utf-8", buffering=1)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, encoding="utf-8", buffering=1, errors="backslashreplace")  # noqa: SIM115


def exit_interpreter(code):
    """Exit as an interpreter does: join threads, run exit handlers, flush the streams."""
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - an interpreter also only prints errors at exit
        traceback.print_exc()
        code = code or 120
    if isinstance(code, str):
        print(code, file=sys.stderr)
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    preload(*SERVERS)
    ForkServer(sys.argv[1]).serve()
