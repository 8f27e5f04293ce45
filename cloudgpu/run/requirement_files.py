"""Requirement files of a recipe: `-r FILE` in `environment.python.requirements` stands for the lines of the file."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from cloudgpu.errors import RecipeError
from cloudgpu.files import SETTINGS_BYTES, read_bytes

_FILE: Final = re.compile(r"(?:-r|--requirement)(?:\s+|=)?(?P<file>\S.*)")
_COMMENT: Final = re.compile(r"(?:^|\s+)#.*")
_DEEPEST: Final = 10


def file_named_by(requirement: str) -> str:
    """Return the file that a requirement names, relative to the work directory; empty if it names a package."""
    match = _FILE.fullmatch(requirement.strip())
    return match["file"].strip() if match else ""


def with_files(requirements: Sequence[str], workdir: Path) -> tuple[str, ...]:
    """Return the requirements with the lines of the files that they name.

    Raises:
        RecipeError: A file cannot be read, or names itself.
    """
    return tuple(_expanded(requirements, workdir, 0))


def _expanded(requirements: Sequence[str], folder: Path, depth: int) -> Iterator[str]:
    for requirement in requirements:
        name = file_named_by(requirement)
        if not name:
            yield requirement
            continue
        path = folder / name
        if depth == _DEEPEST:
            raise RecipeError(f"{path}: requirement files name each other", hint="remove `-r` from one of them")
        # As with pip, a file named in a file is relative to it, and a backslash continues a line.
        lines = _text(path).replace("\\\n", " ").splitlines()
        wanted = (_COMMENT.sub("", line).strip() for line in lines)
        yield from _expanded([line for line in wanted if line], path.parent, depth + 1)


def _text(path: Path) -> str:
    try:
        return read_bytes(path, SETTINGS_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as err:
        why = err.strerror if isinstance(err, OSError) else "it is not UTF-8 text"
        message = f"environment.python.requirements: cannot read {path}: {why}"
        raise RecipeError(message, hint="name a file relative to the work directory") from err
