"""The local files that a run sends: the work directory without separately copied data, and requirement files."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from stat import S_ISREG
from typing import Final

from cloudgpu.errors import RecipeError
from cloudgpu.files import SAVE_AS_UTF8, SETTINGS_BYTES, NotUtf8Error, read_text, real_path
from cloudgpu.recipe.local_files import ALLOW_HINT, OUTSIDE
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.sources import source_of
from cloudgpu.ssh.transfer.local_tree import FileListing
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


def data_within(recipe: Recipe, base: Path) -> Mapping[str, str]:
    """Return the local datasets below the work directory: relative path -> path on the nodes, without the root prefix.

    They are sent once, as data, and the work directory gets a link to each. A dataset with a manifest is not among
    them, because its copy may lack files that the folder has.
    """
    if recipe.workdir is None:
        return {}
    root = (base / recipe.workdir).resolve()
    found: dict[str, str] = {}
    for data in recipe.data:
        source = (base / data.source).resolve()
        if source_of(data.source).kind != "local" or data.manifest is not None:
            continue
        if source.is_relative_to(root) and source != root and source.exists():
            target = data.to if source.is_dir() else data.to / source.name
            found.setdefault(source.relative_to(root).as_posix(), str(target))
    above = {path: {str(parent) for parent in PurePosixPath(path).parents} for path in found}
    return {path: target for path, target in found.items() if not above[path] & found.keys()}


def without_data(listing: FileListing, recipe: Recipe, base: Path) -> FileListing:
    """Return the files of the work directory without those of the datasets in it."""
    folders = data_within(recipe, base)
    if not folders or recipe.workdir is None:
        return listing
    root = base / recipe.workdir
    kept: list[str] = []
    size = listing.bytes
    for file in listing.files:
        if not _is_below(file, folders):
            kept.append(file)
            continue
        status = (root / file).lstat()
        size -= status.st_size if S_ISREG(status.st_mode) else 0
    empty = [folder for folder in listing.folders if not _is_below(folder, folders)]
    return replace(listing, files=tuple(kept), bytes=max(0, size), folders=tuple(empty))


def _is_below(file: str, folders: Collection[str]) -> bool:
    path = PurePosixPath(file)
    return any(str(place) in folders for place in (path, *path.parents))


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
