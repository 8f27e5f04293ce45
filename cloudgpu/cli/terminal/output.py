"""Terminal output, colors and prompts. No other module accesses the terminal.

Lines contain untrusted text: tags, file names, messages from AWS, output of nodes. Renderers therefore return lines
without escape sequences and mark colors with `ColoredText`. `Output` first makes the text printable and then adds
colors, so that no text can forge a color, start another line or send an escape sequence to the terminal.
"""

import os
import shutil
import threading
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TextIO

import typer

from cloudgpu.text import printable

Color = Literal["bold", "dim", "red", "green", "yellow", "cyan", "bold red", "bold green", "bold yellow"]


class ColoredText(NamedTuple):
    """A colored part of a line."""

    text: str
    colour: Color


Line = str | tuple[str | ColoredText, ...]
"""One line without its line feed. It may contain any character; `Output` replaces unprintable characters."""
BROKEN_PIPE_EXIT_CODE = 141
"""The exit code of a command after the reader closed the pipe: the code that shells report for SIGPIPE."""
FILE_COLUMNS = 100
_COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class Output:
    """An output stream that receives complete, printable lines. After a failed write, nothing more is written.

    A closed pipe (`| head`), a closed terminal or a full disk must not interrupt a teardown. Commands that only
    display data (`quits`) exit when the reader closes the pipe.
    """

    def __init__(self, stream: TextIO, *, colour: bool | None = None, quits: bool = False) -> None:
        self._stream = stream
        self.colour = supports_color(stream, os.environ) if colour is None else colour
        self._quits = quits
        self._unread = False
        # The main thread and the threads of the ranks and the engine all write here. The lock prevents mixed lines.
        self._lock = threading.Lock()

    def lines(self, lines: Iterable[Line]) -> None:
        """Write each element as one printable line, and flush.

        Raises:
            typer.Exit: The reader has closed the stream, and the command only displays data.
        """
        self._write("".join(f"{self._rendered(line)}\n" for line in lines))

    def raw(self, text: str) -> None:
        """Write text unchanged to a pipe or a file, or as printable lines to a terminal.

        A pipe or file must receive the exact data; only a terminal would interpret escape sequences.

        Raises:
            typer.Exit: The reader has closed the stream, and the command only displays data.
        """
        if self.is_terminal:
            self.lines(text.splitlines())
        else:
            self._write(text)

    @property
    def is_terminal(self) -> bool:
        """Whether the output is a terminal."""
        return self._stream.isatty()

    @property
    def columns(self) -> int:
        """The width of the terminal, or a fixed width if the output is not a terminal."""
        return shutil.get_terminal_size((FILE_COLUMNS, 24)).columns if self.is_terminal else FILE_COLUMNS

    def _rendered(self, line: Line) -> str:
        pieces = (line,) if isinstance(line, str) else line
        return "".join(
            self._coloured(piece) if isinstance(piece, ColoredText) else printable(piece) for piece in pieces
        )

    def _coloured(self, span: ColoredText) -> str:
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
            raise typer.Exit(BROKEN_PIPE_EXIT_CODE)

    def _send(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._unread = True
            _to_nowhere(self._stream)


def supports_color(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return True for a color terminal, unless NO_COLOR is set to a non-empty value."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def _to_nowhere(stream: TextIO) -> None:
    """Redirect the stream to /dev/null, so that the interpreter does not fail to flush buffered data at exit."""
    try:
        handle = stream.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, handle)
    os.close(nowhere)


def ask(question: str) -> bool:
    """Ask a yes-or-no question on the terminal; the default is no."""
    return typer.confirm(printable(question), default=False, err=True)


def ask_for_text(question: str) -> str:
    """Ask for a line of text on the terminal."""
    return str(typer.prompt(printable(question), err=True))
