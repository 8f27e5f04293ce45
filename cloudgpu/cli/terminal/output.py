"""Terminal output, colors, plain panels, prompts. Only the signal handler writes to the terminal without this module.

Lines contain untrusted text: tags, file names, messages from AWS, output of nodes. Renderers therefore return lines
without escape sequences and mark colors with `ColoredText`. `Output` first makes the text printable and then adds
colors, so that no text can forge a color, start another line or send an escape sequence to the terminal.
"""

import json
import math
import os
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TextIO

import typer

from cloudgpu.cli.terminal.wrapping import wrap_paragraph
from cloudgpu.text import printable

Color = Literal["bold", "dim", "red", "green", "yellow", "cyan", "bold red", "bold green", "bold yellow"]
BROKEN_PIPE_EXIT_CODE = 141
"""Exit code of a command that exits because its reader closed the pipe. Shells report the same code for SIGPIPE."""
FILE_COLUMNS = 100
_PRINTABLE_BYTES = bytes([*b"\n\t", *range(0x20, 0x7F)])
"""ASCII characters that `printable` keeps, and the newlines that join lines."""
_COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
ProgressStyle = Literal["in-place", "lines", "verbose"]
Row = tuple[str, str]
"""A label and its text; an empty label continues the row above."""
Mood = Literal["green", "red", "yellow"]


def json_text(value: object) -> str:
    """Return the JSON text of a document; numbers that JSON cannot represent (NaN, infinity) become null.

    `json.dumps` would write the bare words NaN and Infinity, which other JSON parsers reject. The metrics of a
    diverged training run may contain such numbers.
    """
    return json.dumps(_without_nan(value), indent=2, ensure_ascii=True, allow_nan=False)


def _without_nan(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, dict):
        return {key: _without_nan(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(element) for element in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class ColoredText(NamedTuple):
    """A colored part of a line."""

    text: str
    colour: Color


Line = str | tuple[str | ColoredText, ...]
"""One line of text without the line feed. The text may contain any character: `Output` makes it printable."""


class Region(Protocol):
    """A region at the bottom of a terminal that is redrawn while lines are printed above it."""

    @property
    def running(self) -> bool:
        """Whether the region is on the screen."""

    def start(self) -> None:
        """Show the region, unless it is already shown."""

    def stop(self) -> None:
        """Erase the region."""

    def print(self, text: str) -> None:
        """Write complete lines above the region."""


_shown_region: Region | None = None
"""The region that is on the terminal, which all outputs of this process share."""


def set_shown_region(region: Region | None) -> None:
    """Record the region that is on the terminal, or that there is none."""
    global _shown_region  # noqa: PLW0603 - a process has one terminal
    _shown_region = region


def suspend_region() -> None:
    """Erase the region, so that something else can write to the terminal. The next progress event shows it again."""
    region = _shown_region
    set_shown_region(None)
    if region is not None:
        region.stop()


def render_line(line: Line, *, colour: bool) -> str:
    """Return a line in printable characters, with the escape sequences of its colors if `colour` is set."""
    pieces = (line,) if isinstance(line, str) else line
    return "".join(_render_piece(piece, colour=colour) for piece in pieces)


def _render_piece(piece: str | ColoredText, *, colour: bool) -> str:
    if not isinstance(piece, ColoredText):
        return printable(piece)
    text = printable(piece.text)
    if not colour:
        return text
    codes = ";".join(_COLOURS[word] for word in piece.colour.split())
    return f"\x1b[{codes}m{text}\x1b[0m"


class Output:
    """An output stream for complete, printable lines. After a failed write, nothing more is written.

    A closed pipe (`| head`), a closed terminal or a full disk must not interrupt a teardown. Commands that only
    display data (`quits`) exit after a failed write.
    """

    def __init__(self, stream: TextIO, *, colour: bool | None = None, quits: bool = False) -> None:
        self._stream = stream
        self.colour = supports_color(stream, os.environ) if colour is None else colour
        self._quits = quits
        self._unread = False
        self.region: Region | None = None
        # The main thread, the threads that follow ranks and the engine all write here. The lock keeps lines intact.
        self._lock = threading.Lock()

    def lines(self, lines: Iterable[Line]) -> None:
        """Write each element as one printable line, and flush."""
        self._write("".join(f"{render_line(line, colour=self.colour)}\n" for line in lines))

    def block(self, lines: Sequence[str], prefix: str = "") -> None:
        """Write many uncolored lines, each with the same prefix, much faster than `lines`."""
        separator = f"\n{prefix}"
        text = separator.join(lines)
        # Deleting all printable characters is seven times as fast as searching for another one with a pattern.
        if not text.isascii() or text.encode().translate(None, _PRINTABLE_BYTES):
            text = separator.join(map(printable, lines))
        if lines:
            self._write(f"{prefix}{text}\n")

    def raw(self, text: str) -> None:
        """Write text unchanged to a pipe or a file, or as printable lines to a terminal.

        A pipe or file must receive the exact data; only a terminal would interpret escape sequences.
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
        """The width of the terminal in columns, or `FILE_COLUMNS` if the output is not a terminal."""
        return shutil.get_terminal_size((FILE_COLUMNS, 24)).columns if self.is_terminal else FILE_COLUMNS

    def _write(self, text: str) -> None:
        with self._lock:
            if text and not self._unread:
                self._send(text)
        if self._unread and self._quits:
            raise typer.Exit(BROKEN_PIPE_EXIT_CODE)

    def _send(self, text: str) -> None:
        try:
            if self.region is not None and self.region.running:
                self.region.print(text)
                return
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


def ask(question: str, *, default: bool = False) -> bool:
    """Ask a yes-or-no question on the terminal and return the answer, or `default` if the user only presses Enter."""
    return typer.confirm(printable(question), default=default, err=True)


def ask_for_text(question: str) -> str:
    """Ask for a line of text on the terminal."""
    return str(typer.prompt(printable(question), err=True))


def ask_for_hidden_text(question: str) -> str:
    """Ask for a line of text on the terminal without showing it."""
    return str(typer.prompt(printable(question), hide_input=True, err=True))


def plain_panel(title: str, rows: Sequence[Row], columns: int) -> list[str]:
    """Return the lines of the panel, wrapped and without a frame."""
    label_width = max(len(label) for label, _ in rows)
    lines = ["", title]
    for label, text in rows:
        head = f"  {label:<{label_width}}  "
        lines += wrap_paragraph(head + text, columns, " " * len(head))
    return lines
