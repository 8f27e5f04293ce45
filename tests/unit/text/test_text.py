import re
import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.text import SHELL_WORD, command, printable

HOSTILE = ["\x00", "\x1b[2J", "\r", "\n", "\x7f", "\x9b31m", "\u202e", "\u2066", "\u2028", "\ud800", "\ufeff"]


@given(st.text())
def test_no_control_character_reaches_the_terminal(text):
    shown = printable(text)
    assert all(char.isprintable() or char == "\t" for char in shown)
    assert len(shown) == len(text)
    assert printable(shown) == shown


@pytest.mark.parametrize("text", HOSTILE)
def test_controls_separators_and_surrogates_are_replaced(text):
    assert printable(f"a{text[0]}b") == "a\ufffdb"


@given(st.text(alphabet=st.characters(exclude_categories=["C", "Z"])))
def test_text_of_any_language_stays(text):
    assert printable(text) == text


def test_plain_words_are_not_quoted():
    assert command("cloudgpu", "down", "lab-1", CLOUDGPU_OWNER="ann") == "CLOUDGPU_OWNER=ann cloudgpu down lab-1"


@given(st.lists(st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" ;'\"$`\\&|<>*?~#!(){}"))))
def test_a_shell_reads_back_the_words(words):
    line = command("printf", "%s\\0", *words)
    done = subprocess.run(["sh", "-c", line], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == (words or [""])


@pytest.mark.parametrize(
    "owner", ["x;touch pwned;", "$(touch pwned)", "`touch pwned`", "x\ntouch pwned", "'; touch pwned '"]
)
def test_a_hostile_value_runs_nothing(owner, tmp_path):
    subprocess.run(["sh", "-c", command("true", owner, CLOUDGPU_OWNER=owner)], cwd=tmp_path, check=True)
    assert list(tmp_path.iterdir()) == []


@given(st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" ;'\"$`"), min_size=1))
def test_the_pattern_of_a_word_finds_it_again(text):
    line = f"{command('--set', text)} or nothing"
    found = re.match(rf"--set ({SHELL_WORD}) or nothing$", line)
    assert found
    assert shlex.split(found[1]) == [text]
