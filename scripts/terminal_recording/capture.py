"""Run a command on a pseudo-terminal and collect the frames that its user sees."""

import fcntl
import os
import pty
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from itertools import groupby

import pyte

from terminal_recording.frames import Frame, Line, Rows, Run

_DIM = "brightblack"
_STYLES = {_DIM: "dim", "brown": "yellow", "red": "red", "green": "green", "cyan": "cyan"}
"""Styles by the names that pyte gives to the colours; it calls yellow brown."""


class _Screen(pyte.Screen):
    """A screen that shows dim text, which pyte ignores, as grey."""

    def select_graphic_rendition(self, *attributes: int, **options: bool) -> None:
        super().select_graphic_rendition(*(90 if one == 2 else one for one in attributes), **options)  # noqa: PLR2004


def record(
    argv: Sequence[str], environ: Mapping[str, str], *, columns: int, rows: int, prompt: str
) -> tuple[int, list[Frame]]:
    """Run a command below a prompt; return its exit code and a frame for every change of the screen."""
    screen = _Screen(columns, rows)
    screen.set_mode(pyte.modes.LNM)
    stream = pyte.ByteStream(screen)
    stream.feed(f"{prompt}\n".encode())
    screen.reset_mode(pyte.modes.LNM)
    frames = [Frame(0.0, _rows(screen))]
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.execve(argv[0], list(argv), dict(environ))
    began = time.monotonic()
    while data := _read(terminal):
        stream.feed(data)
        frames.append(Frame(time.monotonic() - began, _rows(screen)))
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), frames


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""  # the last process on the terminal has ended


def _rows(screen: pyte.Screen) -> Rows:
    rows = [_line(screen, row) for row in range(screen.lines)]
    while rows and not rows[-1]:
        rows.pop()
    return tuple(rows)


def _line(screen: pyte.Screen, row: int) -> Line:
    cells = screen.buffer[row]
    text = screen.display[row].rstrip()
    runs = []
    for style, columns in groupby(range(len(text)), key=lambda column: _style(cells[column])):
        place = list(columns)
        words = text[place[0] : place[-1] + 1]
        if words.strip():
            blanks = len(words) - len(words.lstrip())
            runs.append(Run(place[0] + blanks, words.strip(), style))
    return tuple(runs)


def _style(cell: pyte.screens.Char) -> str:
    words = [_STYLES.get(cell.fg, ""), "bold" if cell.bold else ""]
    return " ".join(word for word in words if word)
