"""A command on a pseudo-terminal, whose screen a terminal emulator shows."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyte

_END_S = 60


class PseudoTerminal:
    """A process on a terminal of its own.

    Attributes:
        raw: Everything that the process has written.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        environ: Mapping[str, str],
        columns: int = 80,
        rows: int = 24,
        cwd: Path | None = None,
        stdin: int | None = None,
        start: type[subprocess.Popen] = subprocess.Popen,
    ) -> None:
        """Start the process with `start`, which may be a class that forks it instead."""
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self._fd, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        sizes = ("COLUMNS", "LINES")  # these would take precedence over the size of the terminal
        self._process = start(
            list(argv),
            stdin=terminal if stdin is None else stdin,
            stdout=terminal,
            stderr=terminal,
            cwd=cwd,
            env={name: value for name, value in environ.items() if name not in sizes},
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(terminal)
        self.pid = self._process.pid

    @property
    def text(self) -> str:
        """Everything on the screen and above it, without trailing blanks."""
        columns = range(self.screen.columns)
        above = ["".join(line[column].data for column in columns) for line in self.screen.history.top]
        return "\n".join(line.rstrip() for line in [*above, *self.screen.display]).rstrip()

    def until(self, done: Callable[[str], bool], limit_s: float = 60) -> str:
        """Read until the contents satisfy a condition, and return the contents."""
        end = time.monotonic() + limit_s
        while not done(self.text) and time.monotonic() < end and self._read():
            pass
        assert done(self.text), self.text
        return self.text

    def write(self, text: str) -> None:
        """Type text."""
        os.write(self._fd, text.encode())

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the terminal, as a user does who drags its window."""
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)

    def widen(self, columns: int) -> None:
        """Show lines that are wider than the process's terminal as single lines, without telling the process."""
        self.screen.resize(self.screen.lines, columns)

    def end(self) -> tuple[int, str]:
        """Read to the end; return the exit code and what is left on the screen and above it."""
        while self._read():
            pass
        return self._process.wait(), self.text

    def close(self) -> None:
        """Close the terminal, which ends the process."""
        os.close(self._fd)
        self._process.wait(_END_S)

    def _read(self) -> bool:
        try:
            data = os.read(self._fd, 65536)
        except OSError:
            return False  # the last process on the terminal has ended
        self.raw += data
        self._stream.feed(data)
        return bool(data)


def _take_terminal() -> None:
    """Make standard output the terminal that controls this process."""
    fcntl.ioctl(1, termios.TIOCSCTTY, 0)
