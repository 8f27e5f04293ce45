"""Reject identifiers (names of modules, classes, functions and variables) that contain a word of retired_words.toml.

A word is a part of a name: `wish` is in `StorageWish` and `read_wish`, but not in `wishbone`. Strings, comments and
docstrings are ignored.
"""

import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("cloudgpu", "infra", "scripts", "benchmarks", "tests")
_NAME = re.compile(r"[^\W\d]\w*")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def words(identifier: str) -> set[str]:
    """Split a name into lowercase words."""
    return {part.lower() for part in _PART.findall(identifier)}


def identifiers(source: str) -> Iterator[tuple[int, str]]:
    """Yield every name in a source file with its line number."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string


def retired(path: str, source: str, replacements: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each use of a retired word as (`path:identifier`, message)."""
    stem = Path(path).stem
    # Reading the tokens takes most of the time, so only files that contain a retired word anywhere are read.
    contains = any(words(name) & replacements.keys() for name in set(_NAME.findall(source)))
    for line, name in [(1, stem), *(identifiers(source) if contains else ())]:
        for word in sorted(words(name) & replacements.keys()):
            yield f"{path}:{name}", f"{path}:{line}: {name}: {word} is retired; use {replacements[word]}"


def main() -> int:
    """Print every use that is not allowed and every exception that is not needed, and return the exit status."""
    settings = tomllib.loads((ROOT / "scripts/retired_words.toml").read_text(encoding="utf-8"))
    allowed: Mapping[str, str] = settings["allowed"]
    wrong, used = [], set()
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            relative = str(path.relative_to(ROOT))
            for key, message in retired(relative, path.read_text(encoding="utf-8"), settings["identifiers"]):
                permission = next((pattern for pattern in allowed if fnmatch(key, pattern)), None)
                used.add(permission)
                if permission is None:
                    wrong.append(message)
    wrong += [
        f"scripts/retired_words.toml allows {pattern}, which is not used" for pattern in allowed if pattern not in used
    ]
    print("\n".join(wrong), end="\n" if wrong else "")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
