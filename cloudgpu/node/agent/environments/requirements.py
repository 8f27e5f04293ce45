"""A program for any Python: does this interpreter already have what is required? Exit code 0 means yes.

Sent as text to the interpreter in question, so it stands alone. Anything that it does not understand counts as no:
building an environment needlessly costs minutes, running in a wrong one costs the run.
"""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module, metadata
from typing import Any, Callable, FrozenSet, List, Tuple

Extras = FrozenSet[str]
CheckResult = Tuple[bool, List[Tuple[str, Extras]]]
"""Whether a requirement is met, and what its distribution requires in turn."""

_CLAUSE = r"(==|>=|<=|!=|<|>)\s*([0-9.]+)"
_SIMPLE = re.compile(r"^\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*((?:" + _CLAUSE + r"\s*,?\s*)*)$")


def main() -> int:
    """Read `{"requirements": [...], "version": ...}` from standard input."""
    wanted = json.load(sys.stdin)
    if wanted["version"] not in (None, f"{sys.version_info.major}.{sys.version_info.minor}"):
        return 1
    try:
        return 0 if all_met(wanted["requirements"]) else 1
    except Exception:  # noqa: BLE001 - whatever is broken in there, the answer is no
        return 1


def all_met(lines: list[str]) -> bool:
    """Whether every requirement is met, and theirs in turn where that can be told."""
    answer = reader()
    waiting: list[tuple[str, Extras]] = [(line, frozenset()) for line in lines]
    seen = set()
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            met, more = answer(*one)
            if not met:
                return False
            waiting.extend(more)
    return True


def reader() -> Callable[[str, Extras], CheckResult]:
    """How to read a requirement: with `packaging` (alone or inside pip), else the simplest forms only."""
    for name in ("packaging.requirements", "pip._vendor.packaging.requirements"):
        try:
            requirements = import_module(name)
        except ImportError:
            continue
        return lambda line, extras: by_packaging(requirements.Requirement(line), extras)
    return lambda line, _: (by_hand(line), [])


def by_packaging(requirement: Any, extras: Extras) -> CheckResult:  # noqa: ANN401 - of whichever `packaging` there is
    """With markers, extras and every form of version."""
    marker = requirement.marker
    if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in extras or ("",)):
        return True, []
    if requirement.url:
        return False, []
    try:
        found = metadata.distribution(requirement.name)
    except metadata.PackageNotFoundError:
        return False, []
    met = requirement.specifier.contains(found.version, prereleases=True)
    return met, [(line, frozenset(requirement.extras)) for line in found.requires or ()]


def by_hand(line: str) -> bool:
    """`name`, `name==1.2`, `name>=1.2,<2`, with plain numbers only; everything else is not understood."""
    match = _SIMPLE.match(line)
    if match is None:
        return False
    try:
        have = numbers(metadata.version(match.group(1)))
    except metadata.PackageNotFoundError:
        return False
    return all(compare(have, sign, numbers(version)) for sign, version in re.findall(_CLAUSE, match.group(2)))


def numbers(version: str) -> tuple[int, ...]:
    """`1.2.0+cpu` as (1, 2).

    Raises:
        ValueError: Anything but a plain release.
    """
    parts = [int(part) for part in version.partition("+")[0].split(".")]
    while parts and not parts[-1]:
        parts.pop()
    return tuple(parts)


def compare(have: tuple[int, ...], sign: str, wanted: tuple[int, ...]) -> bool:
    """One clause."""
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
