"""The files of a recipe's work directory that are sent to the nodes, without the data that is copied separately."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from stat import S_ISREG

from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.sources import source_of
from cloudgpu.ssh.transfer.local_tree import FileListing


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
