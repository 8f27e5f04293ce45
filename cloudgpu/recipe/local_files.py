"""Check that a recipe's local files exist, and that the recipe may read them."""

from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Final

from cloudgpu.errors import StateError
from cloudgpu.files import real_path
from cloudgpu.paths import bundled_folder
from cloudgpu.recipe.problem import FieldPath, Problem
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.sources import source_of

EVERYWHERE: Final = (Path("/"),)
"""The allowed paths of a command that uploads nothing, or of a recipe that the user trusts with every file."""
OUTSIDE: Final = "is outside the recipe's folder"
ALLOW_HINT: Final = (
    "a recipe can upload only files in its own folder; if you trust it with these, add --allow-outside, or add their "
    "folder to the `allowed_paths` setting"
)


def is_allowed(path: Path, base: Path, allowed: Sequence[Path]) -> bool:
    """Return True if a recipe may read a path: it is in the recipe's folder or in an allowed path.

    Symbolic links are followed first, so a link in the folder does not make its target readable. The bundled recipes
    may use each other's files.

    Args:
        path: Absolute path, or path relative to the current directory.
        base: Folder of the recipe.
        allowed: Further files and folders that the user allows.
    """
    real, folder = real_path(path), real_path(base)
    if real is None or folder is None:
        return False
    roots = [folder, *filter(None, map(real_path, allowed))]
    with suppress(StateError):
        bundled = bundled_folder("recipes").resolve()
        roots += [bundled] if folder.is_relative_to(bundled) else []
    return any(real.is_relative_to(root) for root in roots)


def file_problems(
    recipe: Recipe, base: Path, *, without: Set[str] = frozenset(), allowed: Sequence[Path] = ()
) -> Iterator[Problem]:
    """Yield a problem for every path that the recipe may not read or that does not exist.

    Paths are relative to `base`. Sections in `without` are skipped.
    """
    if "workdir" not in without:
        yield from _workdir(recipe, base, allowed)
    if "data" not in without:
        yield from _datasets(recipe, base, allowed)
    if "rehearsal" not in without:
        yield from _rehearsal_objects(recipe, base, allowed)


def is_url(source: str) -> bool:
    """Return True if a dataset's source is a URL rather than a path relative to the recipe."""
    return "://" in source


def is_file(path: Path) -> bool:
    """Return True if the path is a regular file. Return False for an invalid file name."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_directory(path: Path) -> bool:
    """Return True if the path is a directory. Return False for an invalid file name."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _workdir(recipe: Recipe, base: Path, allowed: Sequence[Path]) -> Iterator[Problem]:
    if recipe.workdir is None:
        return
    if not is_allowed(base / recipe.workdir, base, allowed):
        yield _outside(str(recipe.workdir), base, ("workdir",))
    elif not is_directory(base / recipe.workdir):
        yield Problem(("workdir",), f"no such directory: {recipe.workdir}")


def _datasets(recipe: Recipe, base: Path, allowed: Sequence[Path]) -> Iterator[Problem]:
    for index, data in enumerate(recipe.data):
        path = ("data", index, "from")
        if not is_url(data.source):
            yield from _existence_problems(base, data.source, path, allowed)
        if data.manifest is not None:
            yield from _existence_problems(base, data.manifest, ("data", index, "manifest"), allowed)


def _rehearsal_objects(recipe: Recipe, base: Path, allowed: Sequence[Path]) -> Iterator[Problem]:
    for source, place in (recipe.rehearsal.objects if recipe.rehearsal else {}).items():
        path = ("rehearsal", "objects", source)
        yield from _local_source_problems(source, path)
        yield from _existence_problems(base, place, path, allowed)


def _local_source_problems(source: str, path: FieldPath) -> Iterator[Problem]:
    """Yield a problem unless the source is a valid URL, because a rehearsal replaces only remote data."""
    try:
        if source_of(source).kind == "local":
            yield Problem(path, f"expected a URL like s3://bucket/prefix/, got {source}")
    except ValueError as err:
        yield Problem(path, str(err))


def _existence_problems(base: Path, place: str, path: FieldPath, allowed: Sequence[Path]) -> Iterator[Problem]:
    if not is_allowed(base / place, base, allowed):
        yield _outside(place, base, path)
    elif not (is_file(base / place) or is_directory(base / place)):
        yield Problem(path, f"no such file or directory: {place!r}")


def _outside(place: str, base: Path, path: FieldPath) -> Problem:
    """Return the problem of a path that the recipe may not read, with the target if a link leads there."""
    written = (base / place).absolute()
    real = real_path(written)
    return Problem(path, f"{place} {OUTSIDE}" + ("" if real in (None, written) else f": it leads to {real}"))
