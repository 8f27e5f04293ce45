"""No message has a count beside a plural noun, such as `1 nodes`: `plural` or a condition chooses the form."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import cloudgpu
from tests.source_code import nodes_of, syntax_nodes

ROOT = Path(cloudgpu.__file__).parent
NOUNS = (
    "attempts|candidates|clusters|combinations|days|files|GPUs|hosts|instances|items|minutes|nodes|problems|ranks|"
    "regions|resources|rows|runs(?! (?:its|that))|times"
)
COUNTED = re.compile(rf"\0 (?!for |of |to |in |and |only |lists )(?:[a-z-]+ )?(?:{NOUNS})\b")
RANGE = re.compile(r"\b(?:nodes|ranks) are (?:\d+|\0) to \0")
CONSTANT = re.compile(r"(?:\w+\.)?_?[A-Z][A-Z0-9_]*(?:\.days)?")
CHECKED = {
    "app/cluster_deletion.py": "count",
    "catalog/prices_and_quotas.py": "letters",  # a family of instance types, not a count
    "backends/aws/clusters/create.py": "plan.nodes",  # more than one
    "backends/aws/sweep.py": "len(to_search)",  # all regions of an account
    "cli/commands/cost.py": "report.omitted",
    "node/agent/gang/spec.py": "gang.nodes",
    "plan/checks/launch.py": "total",
    "plan/checks/account_and_market.py": "nodes",
    "recipe/matrix.py": "count",
    "rehearsal/nodes/hosted_nodes.py": "LIMIT_DAYS",
    "run/containers.py": "len(agents)",
    "ssh/fanout.py": "nodes",
    "state/nodes.py": "len(saved)",
}
"""Counts that cannot be 1 at that place, or whose singular the line before handles."""


def unguarded(tree: ast.AST) -> Iterator[ast.JoinedStr]:
    """Yield every f-string outside of conditional expressions that compare a count."""
    parents = [tree]
    while parents:
        for child in ast.iter_child_nodes(parents.pop()):
            if isinstance(child, ast.JoinedStr):
                yield child
            if not (isinstance(child, ast.IfExp) and isinstance(child.test, ast.Compare)):
                parents.append(child)


def wrong(tree: ast.AST, checked: str = "") -> list[str]:
    found = []
    for text in unguarded(tree):
        parts = [
            str(part.value)
            if isinstance(part, ast.Constant)
            else "N"
            if ast.unparse(part.value) == checked or CONSTANT.fullmatch(ast.unparse(part.value))
            else "\0"
            for part in text.values
            if isinstance(part, ast.Constant | ast.FormattedValue)
        ]
        if COUNTED.search("".join(parts)) or RANGE.search("".join(parts)):
            found.append(ast.unparse(text))
    return found


def test_counts_are_followed_by_the_right_form():
    found = {}
    for path in ROOT.rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        lines = wrong(syntax_nodes(path)[0], CHECKED.get(name, ""))
        if lines and not name.startswith("rehearsal/aws_api/"):
            found[name] = lines
    assert found == {}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('f"{nodes} nodes"', 1),
        ('f"{len(hosts)} self-managed hosts"', 1),
        ('f"its nodes are 0 to {last}"', 1),
        ("f\"{plural(nodes, 'node')}\"", 0),
        ('"one node" if nodes == 1 else f"{nodes} nodes"', 0),
        ('f"at most {LIMIT_DAYS} days"', 0),
    ],
)
def test_wrong_plurals_are_found(source, count):
    assert len(wrong(nodes_of(source)[0])) == count
