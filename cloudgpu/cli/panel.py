"""A titled block of labelled rows: a frame on a terminal, plain wrapped lines in a pipe or a file."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from cloudgpu.cli.table import wrapped

if TYPE_CHECKING:
    from rich.panel import Panel

Row = tuple[str, str]
"""A label and a sentence; an empty label goes on with the row above."""
Mood = Literal["green", "red", "yellow"]
_WIDEST = 110


def plain(title: str, rows: Sequence[Row], columns: int) -> list[str]:
    """The block without a frame."""
    label_width = max(len(label) for label, _ in rows)
    lines = ["", title]
    for label, text in rows:
        head = f"  {label:<{label_width}}  "
        lines += wrapped(head + text, columns, " " * len(head))
    return lines


def framed(title: str, rows: Sequence[Row], mood: Mood, columns: int, *, colour: bool) -> str:
    """The block in a frame, with a colour that says how it went where colours are wanted."""
    from rich.console import Console

    width = min(columns, _WIDEST)
    # Colour and width were decided by the caller: the library's own look at the environment would decide again.
    console = Console(
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
        legacy_windows=False,
        _environ={},
    )
    with console.capture() as captured:
        console.print(_panel(title, rows, mood))
    return "\n" + captured.get()


def _panel(title: str, rows: Sequence[Row], mood: Mood) -> "Panel":
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in rows:
        # Text, not markup: a path or a node's word may hold square brackets.
        grid.add_row(Text(label), Text(text))
    return Panel(grid, title=Text(f" {title} ", style=f"bold {mood}"), title_align="left", border_style=mood)
