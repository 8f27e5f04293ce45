"""Does everything exist that a recipe names on the caller's machine?"""

import re
from collections.abc import Iterator, Set
from pathlib import Path

from cloudgpu.recipe.problem import FieldPath, Problem
from cloudgpu.recipe.schema import Recipe

_OBJECT = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?")


def missing(recipe: Recipe, base: Path, *, without: Set[str] = frozenset()) -> Iterator[Problem]:
    """Every path of the recipe that is not there, relative to `base`; sections in `without` are not looked at."""
    if "workdir" not in without:
        yield from _workdir(recipe, base)
    if "data" not in without:
        yield from _datasets(recipe, base)
    if "rehearsal" not in without:
        yield from _objects(recipe, base)
    if "checkpoint" not in without and recipe.checkpoint and recipe.checkpoint.to is not None:
        yield from _object_name(recipe.checkpoint.to, ("checkpoint", "to"))


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
        if is_object(data.source):
            yield from _object_name(data.source, path)
        else:
            yield from _there(base, data.source, path)
        if data.manifest is not None:
            yield from _there(base, data.manifest, ("data", index, "manifest"))


def _objects(recipe: Recipe, base: Path) -> Iterator[Problem]:
    for source, place in (recipe.rehearsal.objects if recipe.rehearsal else {}).items():
        path = ("rehearsal", "objects", source)
        yield from _object_name(source, path)
        yield from _there(base, place, path)


def _object_name(source: str, path: FieldPath) -> Iterator[Problem]:
    if not _OBJECT.fullmatch(source):
        yield Problem(path, f"expected s3://bucket/prefix/ or a path beside the recipe, got {source}")


def _there(base: Path, place: str, path: FieldPath) -> Iterator[Problem]:
    if not (is_file(base / place) or is_directory(base / place)):
        yield Problem(path, f"no such file or directory: {place!r}")
