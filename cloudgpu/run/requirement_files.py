"""Requirement files of a recipe: `-r FILE` in `environment.python.requirements` stands for the lines of the file."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cloudgpu.errors import RecipeError
from cloudgpu.files import SAVE_AS_UTF8, SETTINGS_BYTES, NotUtf8Error, read_text, real_path
from cloudgpu.recipe.local_files import ALLOW_HINT, OUTSIDE
from cloudgpu.text import command

_FIELD: Final = "environment.python.requirements"
_FILE: Final = re.compile(r"(?:-r|--requirement)(?:\s+|=)?(?P<file>\S.*)")
_COMMENT: Final = re.compile(r"(?:^|\s+)#.*")
_DEEPEST: Final = 10
_OPTION: Final = re.compile(
    r"(?P<option>-e|--editable|-c|--constraint|-f|--find-links)(?:\s+|=|(?=[^-\w\s]))(?P<value>\S.*)"
)
_NAMED: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\s*(?:\[[^\]]*\])?\s*@\s*(?P<url>\S+)")
"""A package with the place from which it is installed, such as `pkg @ file:///src/pkg`."""
_REMOTE: Final = re.compile(r"(?:git|hg|svn|bzr)\+(?!file:)[a-z+]+:|(?:https?|ftp|s3|gs):", re.IGNORECASE)
_OVER_SSH: Final = re.compile(r"\w+\+ssh:|git\+git@", re.IGNORECASE)
_ARCHIVE: Final = re.compile(r"\S+\.(?:whl|tar\.gz|tgz|tar\.bz2|tar\.xz|zip)(?:\[[^\]]*\])?(?=$|[\s;#])", re.IGNORECASE)
_FILE_URL: Final = re.compile(r"(?:[a-z]+\+)?file:(?://(?:localhost)?(?=/))?", re.IGNORECASE)

Allowed = Callable[[Path], bool]
"""Returns whether the recipe may read a file."""


def any_file(_: Path) -> bool:
    """Allow every file, for a recipe whose files have been checked."""
    return True


@dataclass(frozen=True)
class LocalRequirement:
    """A requirement that a node cannot install, because it names a path or needs an SSH key.

    Attributes:
        certain: Whether the installation must fail. False for an absolute path, which may exist on the nodes.
    """

    message: str
    fix: str
    certain: bool


def file_named_by(requirement: str) -> str:
    """Return the file that a requirement names, relative to the work directory; empty if it names a package."""
    match = _FILE.fullmatch(requirement.strip())
    return match["file"].strip() if match else ""


def with_files(requirements: Sequence[str], workdir: Path, allowed: Allowed = any_file) -> tuple[str, ...]:
    """Return the requirements with the lines of the files that they name."""
    return tuple(_expanded(requirements, workdir, allowed, 0))


def local_requirement(requirement: str) -> LocalRequirement | None:
    """Return why a node cannot install a requirement; None if nothing in it refers to this machine.

    The package installer runs on the nodes before the run has a work directory, and its result is shared by all runs
    with the same requirements. Relative paths therefore have no meaning there. A recipe's `setup` runs in the work
    directory.
    """
    option, place = _place(requirement.strip())
    if not place or _REMOTE.match(place) or _OVER_SSH.match(place):
        return _over_ssh(requirement, place)
    path = _FILE_URL.sub("", place, count=1)
    install = {
        "-c": ["-c", "FILE", "-r", "requirements.txt"],
        "-f": ["--find-links", path, "PACKAGE"],
        "-e": ["-e", path],
    }
    suggested = command("pip", "install", *install.get(option, [path]))
    if path.startswith("/"):
        message = f"{requirement} refers to a path on the nodes, not on this machine"
        fix = f"if it is in the work directory, install it in `setup`: {suggested}"
        return LocalRequirement(message, fix, certain=False)
    message = f"{requirement} refers to a path, which the package installer cannot find on the nodes"
    fix = f"remove it, and install it in `setup`, which runs in the work directory: {suggested}"
    return LocalRequirement(message, fix, certain=True)


def _place(requirement: str) -> tuple[str, str]:
    """Return the option of a requirement, if it has one, and the path or URL that it names; empty if it names none."""
    match = _OPTION.fullmatch(requirement)
    if match:
        short = {"--editable": "-e", "--constraint": "-c", "--find-links": "-f"}
        return short.get(match["option"], match["option"]), match["value"].strip().strip("\"'")
    named = _NAMED.match(requirement)
    if named:
        return "", named["url"]
    plain = requirement.split(";", maxsplit=1)[0].strip()
    is_path = plain.startswith((".", "/", "~")) or _FILE_URL.match(plain) or _ARCHIVE.match(plain) or "/" in plain
    return "", plain if is_path and not plain.startswith("-") else ""


def _over_ssh(requirement: str, place: str) -> LocalRequirement | None:
    if not _OVER_SSH.match(place):
        return None
    message = f"{requirement} needs an SSH key on the nodes, and cloudgpu never copies one there"
    fix = "use https, with a token in environment.secrets and the installation in `setup`"
    return LocalRequirement(message, fix, certain=False)


def _expanded(requirements: Sequence[str], folder: Path, allowed: Allowed, depth: int) -> Iterator[str]:
    for requirement in requirements:
        name = file_named_by(requirement)
        if not name:
            yield requirement
            continue
        path = folder / name
        if depth == _DEEPEST:
            raise RecipeError(f"{path}: requirement files name each other", hint="remove `-r` from one of them")
        if not allowed(path):
            real = real_path(path)
            target = f": it leads to {real}" if real is not None else ""
            raise RecipeError(f"{_FIELD}: {name} {OUTSIDE}{target}", hint=ALLOW_HINT)
        # As with pip, a file named in a file is relative to it, and a backslash continues a line.
        lines = _text(path).replace("\\\n", " ").splitlines()
        wanted = (_COMMENT.sub("", line).strip() for line in lines)
        yield from _expanded([line for line in wanted if line], path.parent, allowed, depth + 1)


def _text(path: Path) -> str:
    try:
        return read_text(path, SETTINGS_BYTES)
    except OSError as err:
        hint = SAVE_AS_UTF8 if isinstance(err, NotUtf8Error) else "add it to the work directory, or correct the name"
        raise RecipeError(f"{_FIELD}: cannot read {path}: {err.strerror}", hint=hint) from err
