"""Does everything exist that a recipe names on the caller's machine?"""

from collections.abc import Iterator, Set
from pathlib import Path

from cloudgpu.recipe.problem import FieldPath, Problem
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.sources import source_of


def missing(recipe: Recipe, base: Path, *, without: Set[str] = frozenset()) -> Iterator[Problem]:
    """Every path of the recipe that is not there, relative to `base`; sections in `without` are not looked at."""
    if "workdir" not in without:
        yield from _workdir(recipe, base)
    if "data" not in without:
        yield from _datasets(recipe, base)
    if "rehearsal" not in without:
        yield from _objects(recipe, base)


def is_object(source: str) -> bool:
    """Whether a dataset's source lies in an object store, not beside the recipe."""
    return "://" in source


def is_file(path: Path) -> bool:
    """Whether a regular file can be seen there; names that no file can have are not there either."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_directory(path: Path) -> bool:
    """Whether a directory can be seen there."""
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
        if not is_object(data.source):
            yield from _there(base, data.source, path)
        if data.manifest is not None:
            yield from _there(base, data.manifest, ("data", index, "manifest"))


def _objects(recipe: Recipe, base: Path) -> Iterator[Problem]:
    for source, place in (recipe.rehearsal.objects if recipe.rehearsal else {}).items():
        path = ("rehearsal", "objects", source)
        yield from _elsewhere(source, path)
        yield from _there(base, place, path)


def _elsewhere(source: str, path: FieldPath) -> Iterator[Problem]:
    """Only what is not on this machine can be stood in for."""
    try:
        if source_of(source).kind == "local":
            yield Problem(path, f"expected an address like s3://bucket/prefix/, got {source}")
    except ValueError as err:
        yield Problem(path, str(err))


def _there(base: Path, place: str, path: FieldPath) -> Iterator[Problem]:
    if not (is_file(base / place) or is_directory(base / place)):
        yield Problem(path, f"no such file or directory: {place!r}")
