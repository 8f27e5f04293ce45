"""Tables that adapt to the width of the terminal."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from cloudgpu.cli.terminal.table import Column, Table
from cloudgpu.cli.terminal.wrapping import display_width

WORD = st.text(alphabet="abcXYZ019-./:日本語한글e\u0301", min_size=1, max_size=14).filter(
    lambda word: cell_len(word) > 0
)
TEXT = st.lists(WORD, max_size=5).map(" ".join)
COLUMN = st.builds(
    Column,
    heading=st.sampled_from(["type", "USD/h per node", "GPUs"]),
    right=st.booleans(),
    priority=st.integers(0, 3),
    narrow=st.sampled_from(["wrap", "fold", "hide"]),
    least=st.integers(1, 20),
    whole=st.booleans(),
)


@st.composite
def tables(draw):
    columns = draw(st.lists(COLUMN, min_size=1, max_size=6))
    # A mark in front of each cell makes it possible to find the cell in the output.
    count = draw(st.integers(1, 4))
    rows = [[f"<{row}.{place}>{draw(TEXT)}" for place in range(len(columns))] for row in range(count)]
    return Table(columns, rows, draw(st.sampled_from(["", "  "])))


def units(table: Table) -> set[str]:
    """Return every part of the table that must not be broken."""
    words = {word for column in table.columns for word in column.heading.split()}
    labels = {f"{column.heading}:" for column in table.columns}
    cells = {
        unit
        for row in table.rows
        for column, cell in zip(table.columns, row, strict=True)
        for unit in ([cell] if column.whole else cell.split())
    }
    return words | labels | cells


@given(tables(), st.integers(24, 160))
def test_no_line_is_wider_than_the_terminal_unless_it_is_one_unbreakable_word(table, width):
    unbreakable = units(table)
    for line in table.lines(width):
        assert cell_len(line) <= width or line.strip() in unbreakable


@given(tables(), st.integers(24, 160))
def test_narrow_table_keeps_every_word_or_names_the_hidden_column(table, width):
    lines = table.lines(width)
    text = " ".join(word for line in lines for word in line.split())
    _, _, note = text.partition(" hidden columns: ")
    words = set(text.split())
    for row in table.rows:
        for column, cell in zip(table.columns, row, strict=True):
            kept = any(cell in line for line in lines) if column.whole else words.issuperset(cell.split())
            assert kept or (column.narrow == "hide" and column.heading in note)


@given(tables())
def test_piped_table_has_every_cell_in_one_aligned_line_per_row(table):
    heading, *lines = table.lines()
    assert len(lines) == len(table.rows)
    for place, column in enumerate(table.columns):
        edges = set()
        for line, row in zip(lines, table.rows, strict=True):
            start = line.index(row[place])
            edges.add(cell_len(line[: start + len(row[place])] if column.right else line[:start]))
        assert len(edges) == 1
    assert re.split(r" {2,}", heading.strip()) == [column.heading for column in table.columns]


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("", 0),
        ("abc", 3),
        ("日本", 4),
        ("한글", 4),
        ("e\u0301", 1),
        ("\u1112\u1161\u11ab", 2),
        ("a\U0001f600", 3),
        ("\ufffd", 1),
    ],
)
def test_display_width_counts_terminal_columns(text, width):
    assert display_width(text) == width


OFFERS = Table(
    (
        Column("type"),
        Column("zone", priority=1),
        Column("quota in vCPUs", priority=2, narrow="wrap", least=12),
        Column("USD/h per node", right=True),
        Column("priced on", priority=4, narrow="hide"),
    ),
    (
        ("p3dn.24xlarge", "us-east-1c", "192 needed, 384 of 384 free", "31.212", "2026-11-20"),
        ("p3.16xlarge", "us-east-1a", "128 needed, 384 of 384 free", "24.480", "2026-11-20"),
    ),
    "  ",
)
SCREENS = {
    None: """
  type           zone        quota in vCPUs               USD/h per node  priced on
  p3dn.24xlarge  us-east-1c  192 needed, 384 of 384 free          31.212  2026-11-20
  p3.16xlarge    us-east-1a  128 needed, 384 of 384 free          24.480  2026-11-20
""",
    80: """
  type           zone        quota in vCPUs                  USD/h  priced on
                                                          per node
  p3dn.24xlarge  us-east-1c  192 needed, 384 of 384 free    31.212  2026-11-20
  p3.16xlarge    us-east-1a  128 needed, 384 of 384 free    24.480  2026-11-20
""",
    68: """
  type           zone        quota in vCPUs                  USD/h
                                                          per node
  p3dn.24xlarge  us-east-1c  192 needed, 384 of 384 free    31.212
  p3.16xlarge    us-east-1a  128 needed, 384 of 384 free    24.480
hidden columns: priced on; to show all: a wider terminal, a pipe or
  --json
""",
    56: """
  type           zone        quota in vCPUs        USD/h
                                                per node
  p3dn.24xlarge  us-east-1c  192 needed, 384      31.212
                             of 384 free
  p3.16xlarge    us-east-1a  128 needed, 384      24.480
                             of 384 free
hidden columns: priced on; to show all: a wider
  terminal, a pipe or --json
""",
    40: """
  type           zone           USD/h
                             per node
  p3dn.24xlarge  us-east-1c    31.212
      quota in vCPUs: 192 needed, 384
        of 384 free
  p3.16xlarge    us-east-1a    24.480
      quota in vCPUs: 128 needed, 384
        of 384 free
hidden columns: priced on; to show all:
  a wider terminal, a pipe or --json
""",
    20: """
  type
  p3dn.24xlarge
      zone:
        us-east-1c
      quota in vCPUs:
        192 needed,
        384 of 384
        free
      USD/h per node:
        31.212
  p3.16xlarge
      zone:
        us-east-1a
      quota in vCPUs:
        128 needed,
        384 of 384
        free
      USD/h per node:
        24.480
hidden columns:
  priced on; to show
  all: a wider
  terminal, a pipe
  or --json
""",
}


@pytest.mark.parametrize("width", SCREENS)
def test_table_gives_up_columns_by_priority(width):
    assert "\n".join(["", *OFFERS.lines(width), ""]) == SCREENS[width]
