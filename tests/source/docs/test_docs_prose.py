"""The pages are wrapped at 100 columns, and wrapping changes only line breaks."""

import docs_prose
import pytest

LONG = "word " * 30


@pytest.mark.parametrize("page", docs_prose.pages(), ids=lambda page: str(page.relative_to(docs_prose.ROOT)))
def test_every_page_is_wrapped_at_100_columns(page):
    text = page.read_text(encoding="utf-8")
    assert docs_prose.wrapped(text) == text, "run scripts/check --fix"


def test_paragraphs_and_list_items_are_wrapped():
    lines = docs_prose.wrapped(f"{LONG}\n\n- {LONG}\n  {LONG}\n10. short\n").splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[:3] == [("word " * 20).strip()[:99], ("word " * 10).strip(), ""]
    assert lines[3].startswith("- word")
    assert all(line.startswith("  word") for line in lines[4:-1])
    assert lines[-1] == "10. short"


@pytest.mark.parametrize(
    "text",
    [
        f"| {LONG} | {LONG} |\n",
        f"# {LONG}\n",
        f"<!-- {LONG} -->\n",
        f"```\n{LONG}\n\n- {LONG}\n```\n",
        f"````\n```\n{LONG}\n```\n{LONG}\n````\n",
        f"```\n```yaml\n{LONG}\n```\n",
        f"  ```yaml\n  {LONG}\n  ```\n",
        "short\nlines that stay\nas they are\n",
        f"[text]({'x' * 120})\n",
    ],
)
def test_tables_headings_and_code_blocks_are_not_wrapped(text):
    assert docs_prose.wrapped(text) == text


def test_wrapping_keeps_code_spans_and_creates_no_list_markers():
    filler = "x" * 94
    assert docs_prose.wrapped(f"{filler} `a b c d e`, and more\n") == f"{filler}\n`a b c d e`, and more\n"
    assert max(map(len, docs_prose.wrapped(f"`{LONG}`\n").splitlines())) <= 100
    for mark in ("-", "+", "*", "1.", "#", "|"):
        lines = docs_prose.wrapped(f"x{filler} next {mark} word\n").splitlines()
        assert lines == ["x" + filler, f"next {mark} word"]


def test_wrapping_is_idempotent_on_nested_lists():
    once = docs_prose.wrapped(f"- {LONG}`{LONG}` {LONG}\n\n1. {LONG}\n   - {LONG}\n")
    assert docs_prose.wrapped(once) == once
