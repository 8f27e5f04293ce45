"""What a person sees while things happen: plain lines, coloured on a terminal, never a progress bar in a file."""

import json
import sys
from collections.abc import Sequence
from typing import Any, ClassVar

from cloudgpu.app.happenings import Happening
from cloudgpu.cli.narration import Narrator
from cloudgpu.cli.panel import Mood, Row, framed, plain
from cloudgpu.cli.show_error import detail_lines, error_json
from cloudgpu.cli.terminal import Output
from cloudgpu.errors import CloudGpuError


class Screen:
    """Writes happenings as lines. With `json_mode`, lines go to standard error and one document to standard output."""

    documents: ClassVar[int] = 0
    """How many documents this process has written."""

    def __init__(
        self, *, json_mode: bool = False, colour: bool | None = None, verbose: bool = False, quits: bool = False
    ) -> None:
        self.json_mode = json_mode
        self._quits = quits
        self._out = Output(sys.stderr if json_mode else sys.stdout, colour=colour, quits=quits)
        self._narrator = Narrator(self._out.paint, verbose=verbose)

    @property
    def width(self) -> int | None:
        """Columns of the terminal that lines go to; None where they go to a pipe or a file, which have no end."""
        return self._out.columns if self._out.is_terminal else None

    def say(self, what: Happening) -> None:
        """Show one happening."""
        lines = self._narrator.lines(what)
        if lines:
            self._out.write("".join(f"{line}\n" for line in lines))

    def line(self, text: str = "") -> None:
        """One line for people."""
        self._out.write(text + "\n")

    def text(self, text: str) -> None:
        """Text of a node as it stands, for whoever reads the pipe."""
        self._out.write(text)

    def lines(self, texts: Sequence[str]) -> None:
        """Several lines for people."""
        for text in texts:
            self.line(text)

    def panel(self, title: str, rows: Sequence[Row], mood: Mood) -> None:
        """What a long command came to."""
        if self._out.is_terminal:
            self._out.write(framed(title, rows, mood, self._out.columns, colour=self._out.colour))
        else:
            self.lines(plain(title, rows, self._out.columns))

    def document(self, value: Any) -> None:  # noqa: ANN401
        """The one JSON document of a command."""
        Screen.documents += 1
        Output(sys.stdout, quits=self._quits).write(json.dumps(value, indent=2) + "\n")

    def remark(self, text: str) -> None:
        """One line on standard error: why there is nothing on standard output."""
        Output(sys.stderr).write(f"{text}\n")

    def hint(self, text: str) -> None:
        """What could be typed next, on standard error, for a person alone."""
        out = Output(sys.stderr)
        if out.is_terminal:
            out.write(f"{out.paint('hint:', 'cyan')} {text}\n")

    def error(self, err: CloudGpuError) -> None:
        """Say what happened and what to do next, on standard error."""
        if self.json_mode:
            self.document(error_json(err))
        self.trouble(err.message, detail_lines(err), err.hint)

    def trouble(self, message: str, about: Sequence[str] = (), hint: str = "") -> None:
        """The text of an error."""
        out = Output(sys.stderr)
        lines = [f"{out.paint('error:', 'red')} {message}", *(f"  {one}" for one in about)]
        if hint:
            lines.append(f"{out.paint('hint:', 'cyan')} {hint}")
        out.write("".join(f"{line}\n" for line in lines))
