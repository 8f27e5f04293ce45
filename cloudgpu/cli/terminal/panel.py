"""A titled block of labelled rows: a frame on a terminal, plain wrapped lines in a pipe or a file."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, cast

from cloudgpu.cli.terminal.output import Colour, Line, Span
from cloudgpu.cli.terminal.table import wrapped
from cloudgpu.text import printable

if TYPE_CHECKING:
    from rich.panel import Panel
    from rich.segment import Segment

Row = tuple[str, str]
"""A label and a sentence; an empty label goes on with the row above."""
Mood = Literal["green", "red", "yellow"]
_WIDEST = 110


def plain(title: str, rows: Sequence[Row], columns: int) -> list[str]:
    """Return the block without a frame."""
    label_width = max(len(label) for label, _ in rows)
    lines = ["", title]
    for label, text in rows:
        head = f"  {label:<{label_width}}  "
        lines += wrapped(head + text, columns, " " * len(head))
    return lines


def framed(title: str, rows: Sequence[Row], mood: Mood, columns: int) -> list[Line]:
    """Return the block in a frame whose colour shows the outcome."""
    from rich.console import Console

    # Segments instead of text: the colours are added where lines are written, so the values of the rows cannot forge
    # them. Width and colour system are fixed because rich would look at the environment.
    console = Console(
        width=min(columns, _WIDEST), force_terminal=True, color_system="standard", legacy_windows=False, _environ={}
    )
    rendered = console.render_lines(_panel(title, rows, mood), pad=False)
    return ["", *(tuple(_piece(segment) for segment in line) for line in rendered)]


def _piece(segment: "Segment") -> str | Span:
    style = segment.style
    if style is None:
        return segment.text
    words = [*(["bold"] if style.bold else []), *([style.color.name] if style.color else [])]
    return Span(segment.text, cast("Colour", " ".join(words))) if words else segment.text


def _panel(title: str, rows: Sequence[Row], mood: Mood) -> "Panel":
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in rows:
        # Text, not markup: a path or a node's word may hold square brackets. Printable before the frame is drawn: a
        # line break would start another row of it.
        grid.add_row(Text(printable(label)), Text(printable(text)))
    heading = Text(f" {printable(title)} ", style=f"bold {mood}")
    return Panel(grid, title=heading, title_align="left", border_style=mood)
