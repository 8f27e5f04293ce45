"""Standalone program that checks whether its interpreter meets the requirements. Exit code 0 means that it does.

The source text is passed to the interpreter to check, so this program imports nothing from the agent. A requirement
that it cannot parse counts as not met: a needless build costs minutes, but a wrong environment costs the run.
"""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module, metadata
from typing import Any, Callable, FrozenSet, List, Tuple

Extras = FrozenSet[str]
CheckResult = Tuple[bool, List[Tuple[str, Extras]]]
"""Result of a check: True if the requirement is met, and the requirements that its distribution declares."""

_CLAUSE = r"(==|>=|<=|!=|<|>)\s*([0-9.]+)"
_SIMPLE = re.compile(r"^\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*((?:" + _CLAUSE + r"\s*,?\s*)*)$")


def main() -> int:
    """Read `{"requirements": [...], "version": ...}` from stdin. Return 0 if this Python meets them, otherwise 1."""
    request = json.load(sys.stdin)
    if request["version"] not in (None, f"{sys.version_info.major}.{sys.version_info.minor}"):
        return 1
    try:
        return 0 if all_met(request["requirements"]) else 1
    except Exception:  # noqa: BLE001 - a broken environment does not meet the requirements
        return 1


def all_met(lines: list[str]) -> bool:
    """Return True if every requirement is met, including transitive requirements if `packaging` is available."""
    check = requirement_checker()
    waiting: list[tuple[str, Extras]] = [(line, frozenset()) for line in lines]
    seen = set()
    while waiting:
        requirement = waiting.pop()
        if requirement not in seen:
            seen.add(requirement)
            met, dependencies = check(*requirement)
            if not met:
                return False
            waiting.extend(dependencies)
    return True


def requirement_checker() -> Callable[[str, Extras], CheckResult]:
    """Return a function that checks a requirement.

    The function uses `packaging` if this Python has it, installed or bundled with pip. Otherwise, the function supports
    only simple requirements; see `check_without_packaging`.
    """
    for name in ("packaging.requirements", "pip._vendor.packaging.requirements"):
        try:
            requirements = import_module(name)
        except ImportError:
            continue
        return lambda line, extras: check_with_packaging(requirements.Requirement(line), extras)
    return lambda line, _: (check_without_packaging(line), [])


def check_with_packaging(requirement: Any, extras: Extras) -> CheckResult:  # noqa: ANN401 - from any version of `packaging`
    """Check a requirement with markers, extras and any version specifier. A URL requirement counts as not met."""
    marker = requirement.marker
    if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in extras or ("",)):
        return True, []
    if requirement.url:
        return False, []
    try:
        distribution = metadata.distribution(requirement.name)
    except metadata.PackageNotFoundError:
        return False, []
    met = requirement.specifier.contains(distribution.version, prereleases=True)
    return met, [(line, frozenset(requirement.extras)) for line in distribution.requires or ()]


def check_without_packaging(line: str) -> bool:
    """Check `name`, `name==1.2` or `name>=1.2,<2` with plain numeric versions. Anything else counts as not met."""
    match = _SIMPLE.match(line)
    if match is None:
        return False
    try:
        have = parse_version(metadata.version(match.group(1)))
    except metadata.PackageNotFoundError:
        return False
    return all(
        satisfies_clause(have, sign, parse_version(version)) for sign, version in re.findall(_CLAUSE, match.group(2))
    )


def parse_version(version: str) -> tuple[int, ...]:
    """Parse a version without its local part and trailing zeros. For example, return (1, 2) for `1.2.0+cpu`."""
    parts = [int(part) for part in version.partition("+")[0].split(".")]
    while parts and not parts[-1]:
        parts.pop()
    return tuple(parts)


def satisfies_clause(have: tuple[int, ...], sign: str, wanted: tuple[int, ...]) -> bool:
    """Return True if the installed version `have` satisfies a clause such as `>=1.2`."""
    return {
        "==": have == wanted,
        "!=": have != wanted,
        ">=": have >= wanted,
        "<=": have <= wanted,
        ">": have > wanted,
        "<": have < wanted,
    }[sign]


if __name__ == "__main__":
    sys.exit(main())
