"""Only the target table and the backend factory compare target names; other code checks traits."""

import ast
from collections.abc import Iterable
from pathlib import Path

from cloudgpu.targets import TARGETS
from tests.source_code import nodes_of, syntax_nodes

ROOT = Path(__file__).parents[3]
OWNERS = {"cloudgpu/targets.py", "cloudgpu/backends/factory.py"}


def comparisons(nodes: Iterable[ast.AST]) -> list[str]:
    """Return the comparisons of a variable named `target` or `on` with a target name."""
    found = []
    for node in nodes:
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            values = {one.value for side in sides for one in ast.walk(side) if isinstance(one, ast.Constant)}
            if values & set(TARGETS) and {ast.unparse(side).rpartition(".")[2] for side in sides} & {"target", "on"}:
                found.append(ast.unparse(node))
    return found


def test_target_names_are_compared_only_in_table_and_factory():
    paths = sorted((ROOT / "cloudgpu").rglob("*.py"))
    found = {str(path.relative_to(ROOT)): comparisons(syntax_nodes(path)) for path in paths}
    assert {name: lines for name, lines in found.items() if lines and name not in OWNERS} == {}


def test_comparison_with_a_target_name_is_detected():
    assert comparisons(nodes_of("if record.target == 'ssh': pass\nok = on in ('aws', 'rehearsal')\n")) != []
    assert comparisons(nodes_of("kind.provider == 'aws'")) == []
