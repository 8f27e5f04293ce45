import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudgpu.recipe import document

BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{level}: &a{level} [{','.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 10)
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: yes", "yes"),
        ("a: on", "on"),
        ("a: true", True),
        ("a: ~", None),
        ("a: 007", 7),
        ("a: 0x1f", 31),
        ("a: 1_000", 1000),
        ("a: 1e3", 1000.0),
        ("a: -1.5", -1.5),
        ("a: .inf", math.inf),
        ("a: 1:30", "1:30"),
        ("a: 2026-11-21", "2026-11-21"),
        ("a: '1'", "1"),
        ("a: >-\n  one\n  two\n", "one two"),
        ("a: [1, two, {b: 3}]", [1, "two", {"b": 3}]),
    ],
)
def test_scalars_are_parsed_by_yaml_1_2_rules(text, value):
    assert document.parse(text).value == {"a": value}


def test_fields_have_lines_and_missing_fields_use_section_line():
    read = document.parse("# one\na: 1\nb:\n  c:\n    - x\n    - y: 2\n")
    assert [read.line(path) for path in ((), ("a",), ("b",), ("b", "c", 1), ("b", "c", 1, "y"))] == [2, 2, 3, 6, 6]
    assert read.line(("b", "nope", "deeper")) == 3


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "the file contains no fields"),
        ("# only a comment\n", 1, "the file contains no fields"),
        ("a:\n\tb: 1", 2, "not valid YAML: indented with a tab; use spaces"),
        ("a: 1\nb: {c: 2\n", 3, "not valid YAML: expected ',' or '}', but got '<stream end>'"),
        ("a: 1\nb: 2\na: 3\n", 3, "a: duplicate field, first set on line 1"),
        (
            "a: 1\nb:\n  c: !!python/object/apply:os.system ['true']\n",
            3,
            "the tag tag:yaml.org,2002:python/object/apply",
        ),
        ("a: !mine 1", 1, "the tag !mine is not allowed; use plain values"),
        ("a: 1\n---\nb: 2\n", 2, "not valid YAML: but found another document"),
        ("<<: {a: 1}", 1, "<<: merge keys are not supported"),
        ("? [1]\n: 2", 1, "a field name must be plain text"),
        ("%YAML 1.1\n---\na: yes\n", 2, "only YAML 1.2 is supported"),
        ("a: 1\nb: \x07", 2, "not valid YAML: unacceptable character #x0007"),
        ("a: " + "9" * 5000, 1, "a: not a valid number"),
        ("[" * 3000, 1, "nested more than 30 levels deep"),
        ("a: *nowhere", 1, "not valid YAML: found undefined alias 'nowhere'"),
        ("&a [*a, *a]", 1, "more than 10000 values"),
        ("a: [" + "x," * 30_000 + "]", 1, "more than 10000 values"),
        (BOMB, 3, "more than 16 aliases"),
    ],
)
def test_invalid_document_is_reported_with_its_line(text, line, message):
    (found,) = document.parse(text).problems
    assert found[0] == line
    assert found[1].text.startswith(message)


def test_oversized_document_is_rejected_before_building_values(monkeypatch):
    monkeypatch.setattr(document, "_root", lambda _: pytest.fail("it was built"))
    for text in ("a: [" + "x," * 30_000 + "]", "[" * 3000, BOMB):
        assert document.parse(text).problems


def test_few_yaml_aliases_are_accepted():
    assert document.parse("a: &x [1, 2]\nb: *x\n").value == {"a": [1, 2], "b": [1, 2]}


@settings(deadline=None)  # a busy machine is no bug
@given(st.text(max_size=200))
def test_any_text_parses_to_a_value_or_problems(text):
    read = document.parse(text)
    assert read.problems or read.value is not None or text.strip()


@settings(deadline=None)  # a busy machine is no bug
@given(st.binary(max_size=100))
def test_random_yaml_structure_characters_never_raise(noise):
    alphabet = "{}[]:,-?&*!|>'\"%@`#\n \tab1.~<"
    read = document.parse("".join(alphabet[byte % len(alphabet)] for byte in noise))
    assert all(line >= 1 for line, _ in read.problems)
