"""Screens at the widths of common terminals, and in a pipe."""

import re
from collections.abc import Callable, Sequence

from cloudgpu.cli.terminal.wrapping import display_width

WIDTHS = (80, 100, 160, None)
_WHOLE = re.compile(r" *(?:cloudgpu .*|aws .*|\S+)")
"""A line that must stay whole because it is pasted: a command, or a single word."""


def screens(render: Callable[[int | None], Sequence[str]]) -> str:
    """Return the text that a renderer shows at each of the `WIDTHS`.

    Raises:
        AssertionError: A line is wider than the terminal, but does not have to stay whole.
    """
    blocks = []
    for width in WIDTHS:
        lines = list(render(width))
        too_wide = [line for line in lines if width and display_width(line) > width and not stays_whole(line)]
        assert too_wide == [], f"wider than {width} columns"
        blocks.append("\n".join([f"==== {f'{width} columns' if width else 'a pipe'}", *lines, ""]))
    return "\n".join(blocks)


def stays_whole(line: str) -> bool:
    """Return True if a line may be wider than the terminal, because it is pasted or cannot be divided."""
    return _WHOLE.fullmatch(line) is not None
