"""Human-readable numbers, durations and times."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.cli.terminal.number_format import age, duration, format_time, money, relative_time
from cloudgpu.cli.terminal.table import Column, Table
from cloudgpu.cli.terminal.wrapping import wrap_lines, wrap_paragraph
from cloudgpu.text import plural


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
def test_money_is_formatted_with_suitable_precision(usd, shown):
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
def test_durations_are_formatted_in_readable_units(seconds, shown):
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(-3, "0 s"), (0, "0 s"), (59, "59 s"), (60, "1 min"), (7199, "1 h"), (200000, "2 d")]
)
def test_ages_are_formatted_in_whole_units(seconds, shown):
    assert age(seconds) == shown


def test_times_are_formatted_absolute_and_relative():
    at = datetime(2026, 11, 21, 3, 35, tzinfo=UTC)
    assert format_time(at) == "2026-11-21 03:35 UTC"
    assert relative_time(at, at - timedelta(minutes=29)) == "in 29 min"
    assert relative_time(at, at + timedelta(hours=3)) == "3 h ago"


def test_plural_is_used_except_for_one():
    assert [plural(count, "file") for count in (0, 1, 2)] == ["0 files", "1 file", "2 files"]


CELL = st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)


@given(st.lists(st.tuples(CELL, CELL), min_size=1, max_size=6))
def test_aligned_columns_keep_every_cell(rows):
    lines = Table((Column(), Column(right=True)), rows).lines()
    assert [tuple(line.split()) for line in lines] == rows
    assert len({len(line) for line in lines}) == 1


def test_wrapped_paragraphs_do_not_break_paths():
    path = "/a/very-long/path-with-dashes/" + "x" * 80
    assert wrap_paragraph(f"outputs in {path} as ever", 40, "  ") == ["outputs in", f"  {path}", "  as ever"]
    assert wrap_paragraph("", 40) == [""]
    assert wrap_paragraph("日本 日本 日本", 9) == ["日本 日本", "日本"]
    assert Table((), ()).lines() == []


def test_wrapped_sentences_do_not_break_commands():
    hint = "  to refresh: cloudgpu catalog refresh --on aws; or see `cloudgpu catalog show --on aws` first"
    assert wrap_lines([hint], 40) == [
        "  to refresh:",
        "    cloudgpu catalog refresh --on aws;",
        "    or see",
        "    `cloudgpu catalog show --on aws`",
        "    first",
    ]
    assert wrap_lines([hint], None) == [hint]
