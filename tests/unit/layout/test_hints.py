"""Every error that a person can meet says what to type or change next."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudgpu import errors

ROOT = Path(__file__).parents[3]
ROOMS = ("aws", "catalog", "launch", "ledger", "plan", "provision", "recipe", "remote", "settings")
KINDS = frozenset(
    name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, errors.CloudGpuError)
)
DOUBLES = ("fake.py",)


def without_hint(source: str) -> Iterator[int]:
    """Lines where an error is made without `hint=`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
            given = {keyword.arg for keyword in node.keywords}
            if not given & {"hint", None}:
                yield node.lineno


def test_the_rule_sees_what_it_is_about():
    assert list(without_hint('raise UsageError("no")')) == [1]
    assert list(without_hint('raise UsageError("no", hint="yes")')) == []


@pytest.mark.parametrize("room", ROOMS)
def test_every_error_has_a_hint(room: str):
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / "cloudgpu" / room).rglob("*.py"))
        if path.name not in DOUBLES
        for line in without_hint(path.read_text(encoding="utf-8"))
    ]
    assert found == []
