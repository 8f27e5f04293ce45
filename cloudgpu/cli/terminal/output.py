"""The only access to the terminal: output, colours, prompts.

Lines contain foreign text: tags, file names, messages of AWS, output of nodes. Renderers therefore return lines without
escape sequences and mark colours with `Span`. `Output` makes the text printable and only then adds colours, so that no
text can imitate a colour, start another line or send a sequence to the terminal.
"""

import os
import shutil
import threading
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TextIO

import typer

from cloudgpu.text import printable

Colour = Literal["bold", "dim", "red", "green", "yellow", "cyan", "bold red", "bold green", "bold yellow"]


class Span(NamedTuple):
    """Part of a line with a colour."""

    text: str
    colour: Colour


Line = str | tuple[str | Span, ...]
"""One line without its line feed. It may hold any character: `Output` replaces those that are not printable."""
UNREAD = 141
"""The exit code of a command whose reader went away: what a shell shows for SIGPIPE."""
FILE_COLUMNS = 100
_COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class Output:
    """Writes whole, printable lines. After a failed write, the stream counts as closed and nothing more is written.

    A closed pipe (`| head`), a closed terminal or a full disk must not stop a teardown half-way. Only commands that
    just display something (`quits`) end with their reader.
    """

    def __init__(self, stream: TextIO, *, colour: bool | None = None, quits: bool = False) -> None:
        self._stream = stream
        self.colour = colour_wanted(stream, os.environ) if colour is None else colour
        self._quits = quits
        self._unread = False
        # Ranks, engine threads and the main thread all speak: a line is written whole or not at all.
        self._lock = threading.Lock()

    def lines(self, lines: Iterable[Line]) -> None:
        """Write each element as one printable line, and flush.

        Raises:
            typer.Exit: Nobody reads, and the command does nothing but show.
        """
        self._write("".join(f"{self._rendered(line)}\n" for line in lines))

    def raw(self, text: str) -> None:
        """Pass text through to a pipe or a file unchanged; show it as printable lines on a terminal.

        The output of a program is data in a pipe, and a risk only to a terminal.

        Raises:
            typer.Exit: The reader is gone, and the command only displays.
        """
        if self.is_terminal:
            self.lines(text.splitlines())
        else:
            self._write(text)

    @property
    def is_terminal(self) -> bool:
        """True if the output is a terminal."""
        return self._stream.isatty()

    @property
    def columns(self) -> int:
        """Width of the terminal; a fixed width without one."""
        return shutil.get_terminal_size((FILE_COLUMNS, 24)).columns if self.is_terminal else FILE_COLUMNS

    def _rendered(self, line: Line) -> str:
        pieces = (line,) if isinstance(line, str) else line
        return "".join(self._coloured(piece) if isinstance(piece, Span) else printable(piece) for piece in pieces)

    def _coloured(self, span: Span) -> str:
        text = printable(span.text)
        if not self.colour:
            return text
        codes = ";".join(_COLOURS[word] for word in span.colour.split())
        return f"\x1b[{codes}m{text}\x1b[0m"

    def _write(self, text: str) -> None:
        with self._lock:
            if text and not self._unread:
                self._send(text)
        if self._unread and self._quits:
            raise typer.Exit(UNREAD)

    def _send(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._unread = True
            _to_nowhere(self._stream)


def colour_wanted(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return True on a colour terminal, unless NO_COLOR is set to a non-empty value."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def _to_nowhere(stream: TextIO) -> None:
    """Send what is still buffered nowhere, or the interpreter complains about it when it ends."""
    try:
        handle = stream.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, handle)
    os.close(nowhere)


def ask(question: str) -> bool:
    """Ask a yes-or-no question on the terminal; the default answer is no."""
    return typer.confirm(printable(question), default=False, err=True)


def ask_for_text(question: str) -> str:
    """Ask for a line of text on the terminal."""
    return str(typer.prompt(printable(question), err=True))
