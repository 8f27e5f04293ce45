import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

SOURCE = '''"""A module."""
class Bucket:
    def size(self):
        """Return the bytes
        of all objects."""
        if not self.readable:
            message = f"bucket {self.name} cannot be read"
            raise CloudError(message, hint="check the policy")
        raise UsageError(f"{self.name} is not a bucket", hint=f"use {self.name}-data")
'''


@pytest.fixture
def sample(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import language_sample

    yield language_sample
    del sys.modules["language_sample"]


def test_docstrings_are_found_with_their_line_numbers(sample):
    assert list(sample.docstrings(SOURCE, "a.py")) == [
        ("a.py:1", "A module."),
        ("a.py:4", "Return the bytes\nof all objects."),
    ]


def test_messages_are_found_where_raised_or_assigned(sample):
    assert sorted(sample.messages(SOURCE, "a.py")) == [
        ("a.py:7", "bucket {} cannot be read"),
        ("a.py:8", "check the policy"),
        ("a.py:9", "{} is not a bucket\nhint: use {}-data"),
    ]


def test_help_lines_include_commands_and_options(sample):
    import typer

    from cloudgpu.cli.main import app

    places = [place for place, _ in sample.help_lines(typer.main.get_command(app))]
    assert {"cloudgpu up", "cloudgpu storage create", "cloudgpu storage create --size"} <= set(places)
    assert len(places) > 200


def test_sentences_of_a_page_are_found_without_code_headings_and_tables(sample):
    page = (
        "# A heading of several more words\n\nOne sentence that is\nlong enough. And a second one is here.\n\n"
        "```\ncode that is not read at all.\n```\n\n| a table is not a sentence either |\n\n"
        "- A list item is read, too.\n- Short one.\n"
    )
    assert list(sample.sentences(page, "a.md")) == [
        ("a.md:3", "One sentence that is long enough."),
        ("a.md:3", "And a second one is here."),
        ("a.md:12", "- A list item is read, too."),
    ]


def test_sample_is_reproducible_and_draws_each_text_once(sample):
    passages = [sample.Passage(f"a.py:{number}", f"text {number % 50}") for number in range(100)]
    first = sample.drawn(passages, 20, 14)
    assert first == sample.drawn(list(reversed(passages)), 20, 14) != sample.drawn(passages, 20, 15)
    assert len({text for _, text in first}) == 20
    assert len(sample.drawn(passages, 60, 14)) == 50
