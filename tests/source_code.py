"""Syntax trees of source files, which the tests of source text share: each process parses a file once."""

import ast
from functools import cache
from pathlib import Path


@cache
def syntax_nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a source file in the order of `ast.walk`. The first one is the module."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def nodes_of(source: str) -> tuple[ast.AST, ...]:
    """Return all nodes of a program that is given as text."""
    return tuple(ast.walk(ast.parse(source)))
