"""Tables that adapt to the width of the terminal.

A table that is too wide gives up space by the priority of its columns: a column is wrapped at spaces, folded into
indented lines below each row, or hidden and named below the table. Words are never broken, and cells that a user pastes
are never wrapped. A table for a pipe or a file always has every column in one line per row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

from cloudgpu.cli.terminal.wrapping import display_width, pad, wrap_paragraph, wrap_words
from cloudgpu.text import printable

Mode = Literal["full", "wrapped", "folded", "hidden"]
"""How a column is shown: in line, in line with wrapped cells, in the lines below each row, or not at all."""

_GAP: Final = "  "
_FOLD: Final = "    "
_MORE: Final = "to show all: a wider terminal, a pipe or --json"


@dataclass(frozen=True)
class Column:
    """A column of a table, and how it gives up space on a narrow terminal.

    Attributes:
        heading: The heading; empty for none.
        right: Whether the cells are right-aligned. Such cells are not wrapped.
        priority: Importance. The columns with the highest number give up space first; 0 is the most important.
        narrow: `wrap` cells at spaces, and fold the column where that is not enough; `fold` or `hide` it at once.
        least: Minimum width of the column when it is wrapped.
        whole: Whether the cells are identifiers or commands, which users paste. They are never wrapped.
        label: Text before the cell in the lines below the row, in place of the heading.
        below: Whether the column is always in the lines below the row.
    """

    heading: str = ""
    right: bool = False
    priority: int = 0
    narrow: Literal["wrap", "fold", "hide"] = "fold"
    least: int = 16
    whole: bool = False
    label: str | None = None
    below: bool = False

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The modes in which the column can be shown, the widest first."""
        if self.below:
            return ("folded",)
        if self.narrow == "hide":
            return "full", "hidden"
        return ("full", "wrapped", "folded") if self.narrow == "wrap" else ("full", "folded")

    def units(self, cell: str) -> list[str]:
        """Return the parts of a cell that must not be broken."""
        return [cell] if self.whole else cell.split()


@dataclass(frozen=True)
class Table:
    """Columns and rows of text. The first column identifies the row: it may be wrapped, but is never folded or hidden.

    Attributes:
        columns: The columns.
        rows: One cell per column for every row.
        indent: Text at the start of every line.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    indent: str = ""

    def lines(self, width: int | None = None) -> list[str]:
        """Return the table as lines, none at all if it has no rows.

        Args:
            width: Width of the terminal in columns; None for a pipe or a file.
        """
        if not self.rows:
            return []
        cells = [[printable(cell).replace("\t", " ") for cell in row] for row in self.rows]
        sizes = [_Size.of(column, [row[place] for row in cells]) for place, column in enumerate(self.columns)]
        layout = _fitted(_Layout(self, sizes, tuple(column.modes[0] for column in self.columns), width))
        return [*layout.heading(), *(line for row in cells for line in layout.row(row)), *layout.note()]


def definition_lines(rows: Sequence[tuple[str, str]], width: int | None = None, *, indent: str = "  ") -> list[str]:
    """Return terms or commands, each with its description beside or below it."""
    return Table((Column(whole=True, priority=1, least=24), Column(narrow="wrap", least=30)), rows, indent).lines(width)


@dataclass(frozen=True)
class _Size:
    """The sizes of a column in terminal columns.

    Attributes:
        cell: Width of the widest cell.
        heading: Width of the heading on at most two lines.
        used: Whether any cell has text.
    """

    cell: int
    heading: int
    used: bool

    @classmethod
    def of(cls, column: Column, cells: Sequence[str]) -> "_Size":
        widths = [display_width(cell) for cell in cells]
        return cls(max(widths), _two_line_width(column.heading), any(widths))


@dataclass(frozen=True)
class _Layout:
    """One way to show a table.

    Attributes:
        modes: The mode of each column.
        width: Width of the terminal; None for unlimited.
        tall: Whether headings are wrapped.
    """

    table: Table
    sizes: Sequence[_Size]
    modes: tuple[Mode, ...]
    width: int | None
    tall: bool = False

    @cached_property
    def fits(self) -> bool:
        """Whether every line fits the terminal."""
        ends = (self._starts[place] + width for place, width in self._widths.items())
        return self.width is None or max(ends) <= self.width

    def with_mode(self, place: int, mode: Mode) -> "_Layout":
        """Return the layout with another mode for one column."""
        return replace(self, modes=(*self.modes[:place], mode, *self.modes[place + 1 :]))

    def narrows(self, other: "_Layout", place: int) -> bool:
        """Return True if a wrapped column more important than the one at `place` is narrower than in `other`."""
        priority = self.table.columns[place].priority
        wrapped = (at for at in self._wrapped if self.table.columns[at].priority < priority)
        return any(self._widths[at] < other._widths.get(at, 0) for at in wrapped)

    def heading(self) -> list[str]:
        """Return the lines of the headings, none if the table has no headings."""
        cells = {place: self._heading_lines(place) for place in self._inline}
        return self._aligned(cells) if any(map(any, cells.values())) else []

    def row(self, row: Sequence[str]) -> list[str]:
        """Return the lines of a row: the columns in line, then the folded columns."""
        folded = [place for place, mode in enumerate(self.modes) if mode == "folded" or self._too_wide(place, row)]
        inline = {place: [""] if place in folded else self._cell_lines(place, row[place]) for place in self._inline}
        return [*self._aligned(inline), *self._folded(row, folded)]

    def note(self) -> list[str]:
        """Return a note that names the hidden columns, or nothing."""
        hidden = [
            column.heading
            for column, mode, size in zip(self.table.columns, self.modes, self.sizes, strict=True)
            if mode == "hidden" and size.used
        ]
        if not hidden or self.width is None:
            return []
        return wrap_paragraph(f"hidden columns: {', '.join(hidden)}; {_MORE}", self.width, _GAP)

    @cached_property
    def _inline(self) -> list[int]:
        return [place for place, mode in enumerate(self.modes) if mode in ("full", "wrapped")]

    @cached_property
    def _widths(self) -> dict[int, int]:
        """Return the widths of the columns in line. Wrapped columns share the space that the others leave."""
        widths = {place: self._least(place) for place in self._inline}
        if self.width is not None:
            gaps = len(_GAP) * (len(widths) - 1)
            spare = self.width - len(self.table.indent) - gaps - sum(widths.values())
            for place in sorted(self._wrapped, key=lambda place: self.table.columns[place].priority):
                more = max(0, min(spare, self.sizes[place].cell - widths[place]))
                widths[place] += more
                spare -= more
        return widths

    @cached_property
    def _starts(self) -> dict[int, int]:
        starts: dict[int, int] = {}
        at = len(self.table.indent)
        for place, width in self._widths.items():
            starts[place] = at
            at += width + len(_GAP)
        return starts

    @property
    def _wrapped(self) -> list[int]:
        return [place for place in self._inline if self.modes[place] == "wrapped"]

    def _least(self, place: int) -> int:
        column, size = self.table.columns[place], self.sizes[place]
        if self.modes[place] == "wrapped":
            return max(size.heading, min(size.cell, column.least))
        return max(size.cell, size.heading if self.tall else display_width(column.heading))

    def _heading_lines(self, place: int) -> list[str]:
        heading = self.table.columns[place].heading
        whole = self.modes[place] == "full" and not self.tall
        return [heading] if whole else wrap_words(heading.split(), self._widths[place])

    def _cell_lines(self, place: int, cell: str) -> list[str]:
        if self.modes[place] == "full":
            return [cell]
        return wrap_words(self.table.columns[place].units(cell), self._widths[place])

    def _aligned(self, cells: Mapping[int, Sequence[str]]) -> list[str]:
        """Return the lines of cells side by side.

        If a word is wider than its column, the cells to its right begin below it.
        """
        lines: list[str] = []
        top = 0
        for place, parts in cells.items():
            column, start, width = self.table.columns[place], self._starts[place], self._widths[place]
            for at, part in enumerate(parts, start=top):
                if at == len(lines):
                    lines.append(self.table.indent)
                lines[at] = pad(lines[at], start) + (pad(part, width, right=True) if column.right else part)
            if any(display_width(part) > width for part in parts):
                top = len(lines)
        return [line.rstrip(" ") for line in lines]

    def _too_wide(self, place: int, row: Sequence[str]) -> bool:
        """Return True if a wrapped cell has a word that does not fit between its column and the terminal's edge."""
        if self.width is None or place == 0 or self.modes[place] != "wrapped":
            return False
        units = self.table.columns[place].units(row[place])
        return self._starts[place] + max(map(display_width, units), default=0) > self.width

    def _folded(self, row: Sequence[str], places: Sequence[int]) -> list[str]:
        """Return some cells of a row with their labels, as many on a line as fit."""
        indent = self.table.indent + _FOLD
        lines: list[str] = []
        for column, cell in ((self.table.columns[place], row[place]) for place in places if row[place]):
            label = column.heading if column.label is None else column.label
            parts = [*([f"{label}:"] if label else []), *column.units(cell)]
            field = f"{_GAP}{' '.join(parts)}"
            if self.width is None:
                lines.append(indent + field[len(_GAP) :])
            elif lines and display_width(lines[-1] + field) <= self.width:
                lines[-1] += field
            else:
                first, *more = wrap_words(parts, self.width - len(indent) - len(_GAP))
                lines += [indent + first, *(indent + _GAP + part for part in more)]
        return lines


def _two_line_width(heading: str) -> int:
    words = heading.split()
    splits = ((" ".join(words[:at]), " ".join(words[at:])) for at in range(max(1, len(words))))
    return min(max(display_width(first), display_width(second)) for first, second in splits)


def _fitted(layout: _Layout) -> _Layout:
    """Return the layout of the table that fits the terminal and gives up as little as possible.

    If nothing fits, only the first column stays in line, and words that are wider than the terminal exceed it.
    """
    if layout.fits:
        return layout
    columns = layout.table.columns
    by_importance = sorted(range(len(columns)), key=lambda place: (columns[place].priority, place))
    modes: list[tuple[Mode, ...]] = [
        ("full", "wrapped") if place == 0 else column.modes for place, column in enumerate(columns)
    ]
    layout = replace(layout, tall=True)
    steps = [(place, mode) for place in reversed(by_importance) for mode in modes[place][1:]]
    for place, mode in steps:
        if layout.fits:
            break
        layout = layout.with_mode(place, mode)
    for place in by_importance:
        # Giving up a column may have made room for a less important one that was given up before it.
        wider = modes[place][: modes[place].index(layout.modes[place])]
        others = (layout.with_mode(place, mode) for mode in wider)
        layout = next((other for other in others if other.fits and not other.narrows(layout, place)), layout)
    plain = replace(layout, tall=False)
    return plain if plain.fits else layout
