"""The agent supports Python 3.8, where `dict[...]` outside an annotation fails at import."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import cloudgpu.node

NODE = Path(cloudgpu.node.__file__).parent
MODULES = sorted([*(NODE / "agent").rglob("*.py"), NODE / "connected_command.py"])
BUILTINS = frozenset({"dict", "frozenset", "list", "set", "tuple", "type"})


def subscripted_builtins(source: str) -> Iterator[int]:
    """Yield the lines that subscript a builtin type when the module is imported."""
    pending: list[ast.AST] = [ast.parse(source)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in BUILTINS:
            yield node.lineno
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            pending += node.args.defaults
        elif isinstance(node, ast.AnnAssign):
            pending += [node.value] if node.value else []
        else:
            pending += ast.iter_child_nodes(node)


def test_subscripted_builtins_are_detected_outside_annotations():
    assert list(subscripted_builtins("A = dict[str, int]")) == [1]
    assert list(subscripted_builtins("class A(list[int]):\n    b: dict[str, int] = {}")) == [1]
    assert (
        list(subscripted_builtins("def f(a: list[int]) -> set[int]:\n    b: list[int] = []\n    return set(b)")) == []
    )


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(NODE)))
def test_agent_modules_import_on_python_3_8(path: Path):
    assert list(subscripted_builtins(path.read_text(encoding="utf-8"))) == []
