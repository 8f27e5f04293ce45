import re
import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.text import SHELL_WORD, command, printable

HOSTILE = ["\x00", "\x1b[2J", "\r", "\n", "\x7f", "\x9b31m", "\u202e", "\u2066", "\u2028", "\ud800", "\ufeff"]


@given(st.text())
def test_printable_removes_every_control_character(text):
    shown = printable(text)
    assert all(char.isprintable() or char == "\t" for char in shown)
    assert len(shown) == len(text)
    assert printable(shown) == shown


@pytest.mark.parametrize("text", HOSTILE)
def test_control_characters_and_surrogates_are_replaced(text):
    assert printable(f"a{text[0]}b") == "a\ufffdb"


@given(st.text(alphabet=st.characters(exclude_categories=["C", "Z"])))
def test_printable_keeps_text_of_any_language(text):
    assert printable(text) == text


def test_plain_words_are_not_quoted():
    assert command("cloudgpu", "down", "lab-1", CLOUDGPU_OWNER="ann") == "CLOUDGPU_OWNER=ann cloudgpu down lab-1"


@given(st.lists(st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" ;'\"$`\\&|<>*?~#!(){}"))))
def test_shell_parses_quoted_words_back(words):
    line = command("printf", "%s\\0", *words)
    done = subprocess.run(["sh", "-c", line], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == (words or [""])


@pytest.mark.parametrize(
    "owner", ["x;touch pwned;", "$(touch pwned)", "`touch pwned`", "x\ntouch pwned", "'; touch pwned '"]
)
def test_hostile_value_executes_nothing(owner, tmp_path):
    subprocess.run(["sh", "-c", command("true", owner, CLOUDGPU_OWNER=owner)], cwd=tmp_path, check=True)
    assert list(tmp_path.iterdir()) == []


@given(st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" ;'\"$`"), min_size=1))
def test_shell_word_pattern_matches_quoted_word(text):
    line = f"{command('--set', text)} or nothing"
    found = re.match(rf"--set ({SHELL_WORD}) or nothing$", line)
    assert found
    assert shlex.split(found[1]) == [text]
