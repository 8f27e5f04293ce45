"""Check that a recipe's local files exist."""

from collections.abc import Iterator, Set
from pathlib import Path

from cloudgpu.recipe.problem import FieldPath, Problem
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.sources import source_of


def missing_file_problems(recipe: Recipe, base: Path, *, without: Set[str] = frozenset()) -> Iterator[Problem]:
    """Yield a problem for every path, relative to `base`, that does not exist. Sections in `without` are skipped."""
    if "workdir" not in without:
        yield from _workdir(recipe, base)
    if "data" not in without:
        yield from _datasets(recipe, base)
    if "rehearsal" not in without:
        yield from _rehearsal_objects(recipe, base)


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


def _workdir(recipe: Recipe, base: Path) -> Iterator[Problem]:
    if recipe.workdir is not None and not is_directory(base / recipe.workdir):
        yield Problem(("workdir",), f"no such directory: {recipe.workdir}")


def _datasets(recipe: Recipe, base: Path) -> Iterator[Problem]:
    for index, data in enumerate(recipe.data):
        path = ("data", index, "from")
        if not is_url(data.source):
            yield from _existence_problems(base, data.source, path)
        if data.manifest is not None:
            yield from _existence_problems(base, data.manifest, ("data", index, "manifest"))


def _rehearsal_objects(recipe: Recipe, base: Path) -> Iterator[Problem]:
    for source, place in (recipe.rehearsal.objects if recipe.rehearsal else {}).items():
        path = ("rehearsal", "objects", source)
        yield from _local_source_problems(source, path)
        yield from _existence_problems(base, place, path)


def _local_source_problems(source: str, path: FieldPath) -> Iterator[Problem]:
    """Yield a problem unless the source is a valid URL, because a rehearsal replaces only remote data."""
    try:
        if source_of(source).kind == "local":
            yield Problem(path, f"expected a URL like s3://bucket/prefix/, got {source}")
    except ValueError as err:
        yield Problem(path, str(err))


def _existence_problems(base: Path, place: str, path: FieldPath) -> Iterator[Problem]:
    if not (is_file(base / place) or is_directory(base / place)):
        yield Problem(path, f"no such file or directory: {place!r}")
