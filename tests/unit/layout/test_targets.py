"""Only the target table and the backend factory compare target names; other code checks traits."""

import ast
from pathlib import Path

from cloudgpu.targets import TARGETS

ROOT = Path(__file__).parents[3]
OWNERS = {"cloudgpu/targets.py", "cloudgpu/backends/factory.py"}


def comparisons(text: str) -> list[str]:
    """Return the comparisons of a variable named `target` or `on` with a target name."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            values = {one.value for side in sides for one in ast.walk(side) if isinstance(one, ast.Constant)}
            if values & set(TARGETS) and {ast.unparse(side).rpartition(".")[2] for side in sides} & {"target", "on"}:
                found.append(ast.unparse(node))
    return found


def test_target_names_are_compared_only_in_table_and_factory():
    paths = sorted((ROOT / "cloudgpu").rglob("*.py"))
    found = {str(path.relative_to(ROOT)): comparisons(path.read_text(encoding="utf-8")) for path in paths}
    assert {name: lines for name, lines in found.items() if lines and name not in OWNERS} == {}


def test_comparison_with_a_target_name_is_detected():
    assert comparisons("if record.target == 'ssh': pass\nok = on in ('aws', 'rehearsal')\n") != []
    assert comparisons("kind.provider == 'aws'") == []
