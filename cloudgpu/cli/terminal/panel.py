"""A titled block of labeled rows: framed on a terminal, plain wrapped lines in a pipe or a file."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, cast

from cloudgpu.cli.terminal.output import Color, ColoredText, Line
from cloudgpu.cli.terminal.table import wrap_paragraph
from cloudgpu.text import printable

if TYPE_CHECKING:
    from rich.panel import Panel
    from rich.segment import Segment

Row = tuple[str, str]
"""A label and its text; an empty label continues the row above."""
Mood = Literal["green", "red", "yellow"]
_WIDEST = 110


def plain_panel(title: str, rows: Sequence[Row], columns: int) -> list[str]:
    """Return the block without a frame."""
    label_width = max(len(label) for label, _ in rows)
    lines = ["", title]
    for label, text in rows:
        head = f"  {label:<{label_width}}  "
        lines += wrap_paragraph(head + text, columns, " " * len(head))
    return lines


def framed_panel(title: str, rows: Sequence[Row], mood: Mood, columns: int) -> list[Line]:
    """Return the block in a frame whose color shows the outcome."""
    from rich.console import Console

    # Return segments instead of text: colors are added when the lines are written, so text in the rows cannot forge
    # them. Width and color system are fixed, because rich would otherwise derive them from the environment.
    console = Console(
        width=min(columns, _WIDEST), force_terminal=True, color_system="standard", legacy_windows=False, _environ={}
    )
    rendered = console.render_lines(_panel(title, rows, mood), pad=False)
    return ["", *(tuple(_piece(segment) for segment in line) for line in rendered)]


def _piece(segment: "Segment") -> str | ColoredText:
    style = segment.style
    if style is None:
        return segment.text
    words = [*(["bold"] if style.bold else []), *([style.color.name] if style.color else [])]
    return ColoredText(segment.text, cast("Color", " ".join(words))) if words else segment.text


def _panel(title: str, rows: Sequence[Row], mood: Mood) -> "Panel":
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in rows:
        # Use Text, not markup, because a path or a node's message may contain square brackets. Make the text printable
        # before the frame is drawn, because a line break would start another row.
        grid.add_row(Text(printable(label)), Text(printable(text)))
    heading = Text(f" {printable(title)} ", style=f"bold {mood}")
    return Panel(grid, title=heading, title_align="left", border_style=mood)
