"""Who ends the ranks when the agent cannot: a process that lives as long as the agent, and acts when it is gone."""

from __future__ import annotations

import os
import signal

from .. import proc
from ..containers.run_container import Holder
from .authorized_keys import withdraw
from .spec import StartSpec


class Guard:
    """A process that ends the ranks when the agent dies without a word, whatever killed it."""

    def __init__(self, mark: str, holder: Holder | None = None, spec: StartSpec | None = None) -> None:
        self.mark = mark
        read, self._write = os.pipe()
        if os.fork() == 0:
            os.close(self._write)
            _guard(read, mark, holder, spec)
        os.close(read)

    def watch(self, group: int) -> None:
        """Name a process group to end."""
        self._send(b"%d\n" % group)

    def hold(self, *, there: bool) -> None:
        """Say whether there is a container to end. Once it is gone its name may be that of another try to start."""
        self._send(b"hold\n" if there else b"free\n")

    def kill_hidden(self) -> None:
        """End what carries the run's mark, the guard itself excepted: it never had it in its environment."""
        proc.kill_marked(self.mark)

    def dismiss(self) -> None:
        """The run is over: the guard goes home."""
        self._send(b"bye\n")
        os.close(self._write)

    def _send(self, line: bytes) -> None:
        try:
            os.write(self._write, line)
        except BrokenPipeError:
            return  # somebody killed the guard; the ranks still have the kernel's death signal


def _guard(read: int, mark: str, holder: Holder | None, spec: StartSpec | None) -> None:
    """The guard's whole life; never returns."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Inherited handles would keep locks and the start command's pipe alive.
    os.closerange(0, read)
    os.closerange(read + 1, 4096)
    said = b""
    while True:
        data = os.read(read, 4096)
        said += data
        if said.endswith(b"bye\n"):
            os._exit(0)
        if not data:
            break
    words = said.split()
    for group in (int(word) for word in words if word.isdigit()):
        proc.signal_group(group, signal.SIGKILL)
    proc.kill_marked(mark)
    held = [word for word in words if not word.isdigit()][-1:] == [b"hold"]
    _clean(holder if held else None, spec)
    os._exit(1)


def _clean(holder: Holder | None, spec: StartSpec | None) -> None:
    """Leave nothing of the run that would outlive it."""
    if spec is not None:
        withdraw(spec)
    if holder is not None:
        for _ in range(3):
            os.open(os.devnull, os.O_RDWR)  # a tool expects its standard handles
        holder.remove_stubbornly()
