"""Find the tests that are most likely to notice a change of a module."""

import ast
from collections.abc import Iterable
from pathlib import Path

MOST_FILES = 12
"""Test files to run for one change. More of them take longer and rarely notice what the nearest ones do not."""
TIERS = ("unit", "infra")


class NearestTests:
    """The imports of a checkout, read once."""

    def __init__(self, root: Path) -> None:
        """Read what every module and every quick test imports."""
        modules = {path: module_name(path, root) for path in sorted((root / "cloudgpu").rglob("*.py"))}
        self._root = root
        self._names = set(modules.values())
        self._importers: dict[str, set[str]] = {}
        for path, name in modules.items():
            for imported in self._imported(path):
                self._importers.setdefault(imported, set()).add(name)
        self._tests: dict[str, set[Path]] = {}
        for tier in TIERS:
            for path in sorted((root / "tests" / tier).rglob("test_*.py")):
                for imported in self._imported(path):
                    self._tests.setdefault(imported, set()).add(path.relative_to(root))

    def of(self, module: Path) -> list[Path]:
        """Return test files relative to the root, nearest first: those that import the module, then its importers."""
        found: dict[Path, None] = {}
        seen, layer = set[str](), {module_name(self._root / module, self._root)}
        while layer and len(found) < MOST_FILES:
            seen |= layer
            tests = [test for name in sorted(layer) for test in self._tests.get(name, ())]
            for test in sorted(tests, key=lambda test: (_shares_folder(test, module), str(test))):
                found.setdefault(test)
            layer = {importer for name in layer for importer in self._importers.get(name, ())} - seen
        return list(found)[:MOST_FILES]

    def _imported(self, path: Path) -> set[str]:
        return {name for name in _imports(path.read_text(encoding="utf-8")) if name in self._names}


def module_name(path: Path, root: Path) -> str:
    """Return the dotted name of a module."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(source: str) -> Iterable[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _shares_folder(test: Path, module: Path) -> int:
    """Return a sort key: tests in the folder with the module's name come first."""
    return -len(set(test.parts) & set(module.parent.parts))
