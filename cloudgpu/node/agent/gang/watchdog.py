"""The watchdog process, which cleans up after a run if its agent dies."""

from __future__ import annotations

import os
import signal

from .. import proc
from ..containers.run_container import RankContainer
from . import secret_file
from .authorized_keys import revoke
from .spec import StartSpec, log_paths


class Watchdog:
    """A process that kills the ranks, removes their container and revokes the run's SSH key if the agent dies."""

    def __init__(self, mark: str, container: RankContainer | None = None, spec: StartSpec | None = None) -> None:
        self.mark = mark
        read, self._write = os.pipe()
        if os.fork() == 0:
            os.close(self._write)
            _run_watchdog(read, mark, container, spec)
        os.close(read)

    def watch(self, group: int) -> None:
        """Add a process group to kill if the agent dies."""
        self._send(b"%d\n" % group)

    def hold(self, *, exists: bool) -> None:
        """Tell the watchdog to remove the container if the agent dies (`exists=True`), or not to remove it.

        The watchdog must not remove a container by name once another attempt may have reused the name.
        """
        self._send(b"hold\n" if exists else b"free\n")

    def kill_marked_processes(self) -> None:
        """Kill every process that has the run's mark. The watchdog itself does not have the mark."""
        proc.kill_marked(self.mark)

    def dismiss(self) -> None:
        """Tell the watchdog to exit without killing any process, because the run has ended."""
        self._send(b"bye\n")
        os.close(self._write)

    def _send(self, line: bytes) -> None:
        try:
            os.write(self._write, line)
        except BrokenPipeError:
            return  # the watchdog was killed; the ranks still receive the kernel's death signal


def _run_watchdog(read: int, mark: str, container: RankContainer | None, spec: StartSpec | None) -> None:
    """Run the watchdog. Never returns."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Inherited file handles would keep locks held and the start command's pipe open.
    os.closerange(0, read)
    os.closerange(read + 1, 4096)
    received = b""
    while True:
        data = os.read(read, 4096)
        received += data
        if received.endswith(b"bye\n"):
            os._exit(0)
        if not data:
            break
    messages = received.split()
    for group in (int(word) for word in messages if word.isdigit()):
        proc.signal_group(group, signal.SIGKILL)
    proc.kill_marked(mark)
    last_was_hold = [word for word in messages if not word.isdigit()][-1:] == [b"hold"]
    _clean_up(container if last_was_hold else None, spec)
    os._exit(1)


def _clean_up(container: RankContainer | None, spec: StartSpec | None) -> None:
    """Revoke the run's SSH key, remove its secrets from the logs and its container."""
    if spec is not None:
        revoke(spec)
    if container is not None:
        for _ in range(3):
            os.open(os.devnull, os.O_RDWR)  # the docker client expects open standard streams
        container.remove_with_retries()
    if spec is not None:
        secret_file.finish(spec.run_dir, log_paths(spec))
