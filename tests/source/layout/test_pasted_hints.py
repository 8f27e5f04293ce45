"""Commands and paths in hints are quoted by the rules of the shell, so that they can be pasted if they hold spaces."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import cloudgpu
from tests.source_code import nodes_of, syntax_nodes

ROOT = Path(cloudgpu.__file__).parent
COMMAND = re.compile(r"(?:cloudgpu|ssh|scp|rm|mv|cp|chmod|chown|cd|cat|tail|export|source) (?:[^`;,\0]* )?[^\s`;,]*\0")
OPTION = re.compile(r"--[a-z-]+[ =](?:[^\s`;,\0]*=)?\0")
PATH = re.compile(r"(?:^|[._])(?:path|file|folder|log|here|parent|record_file|directory)$")
QUOTES = {"command", "shlex.quote", "shlex.join"}


def name_of(target: ast.expr) -> str:
    """Return the name that an assignment gives a value, without the object of an attribute."""
    return getattr(target, "id", "") or getattr(target, "attr", "")


def hints(nodes: Iterable[ast.AST]) -> Iterator[ast.JoinedStr]:
    """Yield the f-strings of every `hint=` argument and of every assignment to `hint`."""
    for node in nodes:
        values = (
            [keyword.value for keyword in node.keywords if keyword.arg == "hint"] if isinstance(node, ast.Call) else []
        )
        if isinstance(node, ast.Assign) and any(name_of(target).endswith("hint") for target in node.targets):
            values = [node.value]
        for value in values:
            yield from (inner for inner in ast.walk(value) if isinstance(inner, ast.JoinedStr))


def is_quoted(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) in QUOTES


def unquoted(source: str) -> list[str]:
    """Return the hints with an unquoted value in a command or an option, or with an unquoted path."""
    return unquoted_hints(hints(nodes_of(source)))


def unquoted_hints(texts: Iterable[ast.JoinedStr]) -> list[str]:
    found = []
    for hint in texts:
        text, paths = "", False
        for part in hint.values:
            if isinstance(part, ast.FormattedValue):
                text += "Q" if is_quoted(part.value) else "\0"
                name = ast.unparse(part.value).removeprefix("str(").removesuffix(")")
                paths = paths or (not is_quoted(part.value) and PATH.search(name) is not None)
            elif isinstance(part, ast.Constant):
                text += str(part.value)
        if paths or COMMAND.search(text) or OPTION.search(text):
            found.append(ast.unparse(hint))
    return found


def test_commands_and_paths_in_hints_are_quoted():
    texts = {path.relative_to(ROOT).as_posix(): list(hints(syntax_nodes(path))) for path in ROOT.rglob("*.py")}
    assert {path: found for path, in_file in texts.items() if (found := unquoted_hints(in_file))} == {}
    assert sum(map(len, texts.values())) > 100


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('fail(hint=f"run `cloudgpu train {name}`")', 1),
        ('fail(hint=f"run `cloudgpu train --set {name}=1`")', 1),
        ('fail(hint=f"use --plan {name}")', 1),
        ('fail(hint=f"see {self.log}")', 1),
        ('err.hint = f"read {path}"', 1),
        ('fail(hint=f"see {command(str(self.log))}")', 0),
        ('fail(hint=f"run `{command(name)}`; expected {kind}")', 0),
        ('fail(message=f"cannot read {path}")', 0),
    ],
)
def test_unquoted_values_are_found(source, count):
    assert len(unquoted(source)) == count
