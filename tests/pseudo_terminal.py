"""A command on a pseudo-terminal, whose screen a terminal emulator shows."""

import fcntl
import os
import pty
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyte


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
    ) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            if stdin is not None:
                os.dup2(stdin, 0)
            if cwd is not None:
                os.chdir(cwd)
            sizes = ("COLUMNS", "LINES")  # these would take precedence over the size of the terminal
            os.execve(argv[0], list(argv), {name: value for name, value in environ.items() if name not in sizes})

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
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), self.text

    def close(self) -> None:
        """Close the terminal."""
        os.close(self._fd)

    def _read(self) -> bool:
        try:
            data = os.read(self._fd, 65536)
        except OSError:
            return False  # the last process on the terminal has ended
        self.raw += data
        self._stream.feed(data)
        return bool(data)
