"""Figures for people."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.cli.terminal.number_format import age, duration, format_time, money, plural, relative_time
from cloudgpu.cli.terminal.table import align_columns, wrap_paragraph


@pytest.mark.parametrize(
    ("usd", "shown"),
    [
        ("0", "$0.00"),
        ("0.000000", "$0.00"),
        ("0.01753", "$0.0175"),
        ("1.0404", "$1.04"),
        ("62.424", "$62.42"),
        ("1234567.891", "$1,234,567.89"),
        ("0.00001", "$0.0000"),
        ("0.99995", "$1.0000"),
        ("2.005", "$2.01"),
    ],
)
def test_money(usd, shown):
    assert money(Decimal(usd)) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0.0 s"),
        (4.04, "4.0 s"),
        (59.96, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3599.6, "1 h 00 min"),
        (7320, "2 h 02 min"),
    ],
)
def test_durations(seconds, shown):
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(-3, "0 s"), (0, "0 s"), (59, "59 s"), (60, "1 min"), (7199, "1 h"), (200000, "2 d")]
)
def test_ages(seconds, shown):
    assert age(seconds) == shown


def test_moments():
    at = datetime(2026, 11, 21, 3, 35, tzinfo=UTC)
    assert format_time(at) == "2026-11-21 03:35 UTC"
    assert relative_time(at, at - timedelta(minutes=29)) == "in 29 min"
    assert relative_time(at, at + timedelta(hours=3)) == "3 h ago"


def test_plurals():
    assert [plural(count, "file") for count in (0, 1, 2)] == ["0 files", "1 file", "2 files"]


CELL = st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)


@given(st.lists(st.tuples(CELL, CELL), min_size=1, max_size=6))
def test_columns_align_and_lose_nothing(rows):
    lines = align_columns(rows, right={1})
    assert [tuple(line.split()) for line in lines] == rows
    assert len({len(line) for line in lines}) == 1


def test_paragraphs_never_tear_a_path():
    path = "/a/very-long/path-with-dashes/" + "x" * 80
    assert wrap_paragraph(f"outputs in {path} as ever", 40, "  ") == ["outputs in", f"  {path}", "  as ever"]
    assert wrap_paragraph("", 40) == [""]
    assert align_columns([]) == []
