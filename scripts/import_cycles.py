"""Find import cycles between modules of cloudgpu, except for those listed in pyproject.toml.

import-linter's contracts order the packages but do not prevent two modules of a package from importing each other. An
import inside a function or under TYPE_CHECKING counts too, because even then neither module can be understood without
the other.

The list may only shrink: a cycle that is not listed is an error, and so is an entry that is no longer a cycle.
"""

import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "cloudgpu"

Cycle = tuple[str, ...]


def cycles(imports: Mapping[str, Iterable[str]]) -> set[Cycle]:
    """Return the groups of modules that import each other, directly or indirectly. Each group is sorted by name."""
    reached = {module: _reachable(module, imports) for module in imports}
    groups = {
        tuple(sorted({module} | {other for other in reached[module] if module in reached.get(other, ())}))
        for module in imports
    }
    return {group for group in groups if len(group) > 1 or group[0] in reached[group[0]]}


def _reachable(start: str, imports: Mapping[str, Iterable[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = list(imports[start])
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += imports.get(module, ())
    return seen


def problems(cycles_found: set[Cycle], allowed: set[Cycle]) -> list[str]:
    """Return one line for each cycle that is not allowed, and for each entry that is no longer a cycle."""
    new = [f"new import cycle: {' <-> '.join(cycle)}" for cycle in sorted(cycles_found - allowed)]
    stale = [
        f"no longer a cycle, remove it from pyproject.toml: {', '.join(cycle)}"
        for cycle in sorted(allowed - cycles_found)
    ]
    return new + stale


def main() -> int:
    """Print the problems and return the exit status."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["cloudgpu"]
    allowed = {tuple(sorted(cycle)) for cycle in settings["import-cycles"]}
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    cycles_found = cycles({module: graph.find_modules_directly_imported_by(module) for module in graph.modules})
    wrong = problems(cycles_found, allowed)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
