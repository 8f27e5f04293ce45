"""Forks commands, rehearsal servers and node hosts from a process that has everything imported.

`python fork_server.py SOCKET`. A request is one packet on its own connection: JSON `{"module", "argv", "cwd", "env",
"own_session"}`, with standard input, output and error as descriptors. The first answer is `{"pid"}`, the second
`{"status"}` once the process has ended, negative for a signal. What is forked is what `python -m MODULE` would have
been a second later: same `main`, same environment, streams, signals and exit.
"""

import atexit
import contextlib
import functools
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import threading
import traceback

from loaded import SERVERS, load

os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"  # read when moto is imported

MAINS = {
    "cloudgpu": ("cloudgpu.cli.main", "entry"),
    "cloudgpu.rehearsal.server": ("cloudgpu.rehearsal.server.main", "main"),
    "cloudgpu.rehearsal.nodes.host": ("cloudgpu.rehearsal.nodes.host", "main"),
}
DEFAULTS = (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM)
_PACKET = 1 << 20


class ForkServer:
    """One thread, so that a fork finds every lock open."""

    def __init__(self, path):
        self._path = path
        self._events = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen(64)
        self._going = True

    def serve(self):
        """Until standard input ends, as it does when whoever started us is gone."""
        self._events.register(self._listener, selectors.EVENT_READ, lambda _: self._start())
        self._events.register(sys.stdin, selectors.EVENT_READ, lambda _: self._leave())
        print("ready", flush=True)
        while self._going:
            for key, _ in self._events.select():
                key.data(key.fileobj)

    def _leave(self):
        self._going = False

    def _start(self):
        peer, _ = self._listener.accept()
        try:
            packet, streams, _, _ = socket.recv_fds(peer, _PACKET, 3)
        except OSError:
            packet = b""
        if not packet:  # whoever was about to ask was killed
            return peer.close()
        request = json.loads(packet)
        pid = os.fork()
        if not pid:
            self._forget(peer)
            become(streams, path=self._path, **request)
        for stream in streams:
            os.close(stream)
        with contextlib.suppress(OSError):  # what was asked for goes on without whoever asked, as after any fork
            peer.send(json.dumps({"pid": pid}).encode())
        self._events.register(os.pidfd_open(pid), selectors.EVENT_READ, functools.partial(self._ended, pid, peer))
        return None

    def _forget(self, peer):
        """In the child: hold nothing of what its siblings wait for."""
        for key in list(self._events.get_map().values()):
            if isinstance(key.data, functools.partial):
                key.data.args[1].close()
                os.close(key.fd)
        self._events.close()
        self._listener.close()
        peer.close()

    def _ended(self, pid, peer, pidfd):
        self._events.unregister(pidfd)
        os.close(pidfd)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(OSError), peer:  # whoever asked may be gone
            peer.send(json.dumps({"status": status}).encode())


def become(streams, *, path, module, argv, cwd, env, own_session):
    """What a new interpreter would do with the module; never returns."""
    code = 70
    try:
        if own_session:
            os.setsid()
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
        for stream in set(streams) - {0, 1, 2}:
            os.close(stream)
        for number in DEFAULTS:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(env)
        os.chdir(cwd)
        reopen()
        # What it starts in its turn is forked too; `python fork_server.py` has this folder on its path.
        importlib.import_module("forked").fork_from(path)
        sys.argv = [module, *argv]
        place, name = MAINS[module]
        main = getattr(sys.modules[place], name)
        code = main() if name == "entry" else main(argv)
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - a forked child must not go on in this loop
        traceback.print_exc()
        code = 1
    finish(code)


def reopen():
    """Streams as `python -u` has them."""
    sys.stdin = open(0, closefd=False, encoding="utf-8")  # noqa: SIM115 - as long as the process lives
    sys.stdout = open(1, "w", closefd=False, encoding="utf-8", buffering=1)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, encoding="utf-8", buffering=1, errors="backslashreplace")  # noqa: SIM115


def finish(code):
    """As an interpreter ends: threads are awaited, what is registered runs, what is written gets out."""
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - an interpreter at its end only tells of it, too
        traceback.print_exc()
        code = code or 120
    if isinstance(code, str):
        print(code, file=sys.stderr)
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    load(*SERVERS)
    ForkServer(sys.argv[1]).serve()
