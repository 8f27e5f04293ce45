"""Text output of a command: plain lines, coloured on a terminal, without progress bars."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from cloudgpu.backends.events import ProgressEvent
from cloudgpu.cli.render.error import detail_lines, error_json
from cloudgpu.cli.terminal.json_text import json_text
from cloudgpu.cli.terminal.output import Line, Output, Span
from cloudgpu.cli.terminal.panel import Mood, Row, framed, plain
from cloudgpu.cli.terminal.progress import Narrator
from cloudgpu.errors import CloudGpuError


class Screen:
    """Write output as lines. With `json_mode`, lines go to stderr and one JSON document to stdout."""

    documents: ClassVar[int] = 0
    """Number of documents that this process has written."""

    def __init__(
        self, *, json_mode: bool = False, colour: bool | None = None, verbose: bool = False, quits: bool = False
    ) -> None:
        self.json_mode = json_mode
        self._quits = quits
        self._out = Output(sys.stderr if json_mode else sys.stdout, colour=colour, quits=quits)
        self._narrator = Narrator(verbose=verbose)

    @property
    def width(self) -> int | None:
        """Width of the terminal in columns; None for a pipe or a file, which have no limit."""
        return self._out.columns if self._out.is_terminal else None

    def emit(self, event: ProgressEvent) -> None:
        """Show a progress event."""
        self._out.lines(self._narrator.lines(event))

    def line(self, text: Line = "") -> None:
        """Write one line of text."""
        self._out.lines([text])

    def raw(self, text: str) -> None:
        """Write output of a program, or data for one: unchanged in a pipe, printable on a terminal."""
        self._out.raw(text)

    def lines(self, texts: Iterable[Line]) -> None:
        """Write several lines of text."""
        self._out.lines(texts)

    def panel(self, title: str, rows: Sequence[Row], mood: Mood) -> None:
        """Write the summary of a long command."""
        columns = self._out.columns
        self._out.lines(framed(title, rows, mood, columns) if self._out.is_terminal else plain(title, rows, columns))

    def document(self, value: Any) -> None:  # noqa: ANN401
        """Write the JSON document of a command."""
        Screen.documents += 1
        # JSON escapes everything but printable ASCII, so these lines are what the document holds.
        Output(sys.stdout, quits=self._quits).lines(json_text(value).split("\n"))

    def remark(self, text: Line) -> None:
        """Write one line to stderr."""
        Output(sys.stderr).lines([text])

    def hint(self, text: str) -> None:
        """Suggest what to type next, on stderr, if it is a terminal."""
        out = Output(sys.stderr)
        if out.is_terminal:
            out.lines([_hint(text)])

    def error(self, err: CloudGpuError) -> None:
        """Report an error on stderr, with its details and hint."""
        if self.json_mode:
            self.document(error_json(err))
        self.trouble(err.message, detail_lines(err), err.hint)

    def trouble(self, message: str, details: Sequence[str] = (), hint: str = "") -> None:
        """Write the text of an error to stderr."""
        lines: list[Line] = [(Span("error:", "red"), f" {message}"), *(f"  {line}" for line in details)]
        Output(sys.stderr).lines([*lines, _hint(hint)] if hint else lines)


def _hint(text: str) -> Line:
    return (Span("hint:", "cyan"), f" {text}")
