"""Text output of a command: plain lines, colored on a terminal, and no progress bars."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from cloudgpu.backends.events import ProgressEvent
from cloudgpu.cli.render.error import detail_lines, error_json
from cloudgpu.cli.terminal.json_text import json_text
from cloudgpu.cli.terminal.output import ColoredText, Line, Output
from cloudgpu.cli.terminal.panel import Mood, Row, framed_panel, plain_panel
from cloudgpu.cli.terminal.progress import ProgressPrinter
from cloudgpu.errors import CloudGpuError


class Screen:
    """The output of a command as lines. In `json_mode`, lines go to stderr and one JSON document goes to stdout."""

    documents: ClassVar[int] = 0
    """Number of JSON documents that this process has written."""

    def __init__(
        self, *, json_mode: bool = False, colour: bool | None = None, verbose: bool = False, quits: bool = False
    ) -> None:
        self.json_mode = json_mode
        self._quits = quits
        self._out = Output(sys.stderr if json_mode else sys.stdout, colour=colour, quits=quits)
        self._narrator = ProgressPrinter(verbose=verbose)

    @property
    def width(self) -> int | None:
        """Width of the terminal in columns; None for a pipe or a file, whose width is unlimited."""
        return self._out.columns if self._out.is_terminal else None

    def emit(self, event: ProgressEvent) -> None:
        """Show a progress event."""
        self._out.lines(self._narrator.lines(event))

    def line(self, text: Line = "") -> None:
        """Write one line of text."""
        self._out.lines([text])

    def raw(self, text: str) -> None:
        """Write command output or data for another program: unchanged to a pipe, as printable lines to a terminal."""
        self._out.raw(text)

    def lines(self, texts: Iterable[Line]) -> None:
        """Write several lines of text."""
        self._out.lines(texts)

    def panel(self, title: str, rows: Sequence[Row], mood: Mood) -> None:
        """Write the summary of a long-running command."""
        columns = self._out.columns
        self._out.lines(
            framed_panel(title, rows, mood, columns) if self._out.is_terminal else plain_panel(title, rows, columns)
        )

    def document(self, value: Any) -> None:  # noqa: ANN401
        """Write the JSON document of a command."""
        Screen.documents += 1
        # `json_text` escapes all characters but printable ASCII, so `Output` does not change these lines.
        Output(sys.stdout, quits=self._quits).lines(json_text(value).split("\n"))

    def remark(self, text: Line) -> None:
        """Write one line to stderr."""
        Output(sys.stderr).lines([text])

    def hint(self, text: str) -> None:
        """Write a hint on what to type next to stderr, if stderr is a terminal."""
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
        lines: list[Line] = [(ColoredText("error:", "red"), f" {message}"), *(f"  {line}" for line in details)]
        Output(sys.stderr).lines([*lines, _hint(hint)] if hint else lines)


def _hint(text: str) -> Line:
    return (ColoredText("hint:", "cyan"), f" {text}")
