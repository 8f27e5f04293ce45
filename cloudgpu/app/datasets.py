"""Datasets before a run: what is to be staged, and what it must be. Asked before anything is bought."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cloudgpu.app.ports import Cloud
from cloudgpu.errors import RecipeError
from cloudgpu.recipe.schema import Data, Recipe
from cloudgpu.run.files import RemoteFile

_LINE = re.compile(r"^(?P<sha>[0-9a-fA-F]{64}) [ *](?P<path>.+)$")
_URL_LIFE_S = 6 * 3600


def put_rehearsal_objects(recipe: Recipe, base: Path, cloud: Cloud) -> int:
    """Fill the rehearsal's buckets as the recipe's rehearsal stanza says; bytes sent, 0 when all was there.

    Raises:
        CloudError: The rehearsal endpoint refused.
    """
    if recipe.rehearsal is None or cloud.target != "rehearsal":
        return 0
    return sum(cloud.put_objects(url, base / source) for url, source in recipe.rehearsal.objects.items())


def lister(cloud: Cloud, base: Path) -> Callable[[Data], Sequence[RemoteFile]]:
    """How a dataset's files are listed, with fresh presigned addresses and the manifest's checksums."""

    def files(dataset: Data) -> Sequence[RemoteFile]:
        found = cloud.objects(dataset.source, expires_s=_URL_LIFE_S)
        return found if dataset.manifest is None else _matched(dataset, found, base / dataset.manifest)

    return files


def read_manifest(path: Path) -> Mapping[str, str]:
    """Relative path -> SHA-256, from a file in `sha256sum` form.

    Raises:
        RecipeError: It cannot be read, or a line is not of that form.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as err:
        message = f"cannot read the manifest {path}: {err}"
        raise RecipeError(message) from err
    sums = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            message = f"{path}:{number}: expected `<sha256>  <path>` as sha256sum prints it"
            raise RecipeError(message)
        sums[match["path"].removeprefix("./")] = match["sha"].lower()
    return sums


def _matched(dataset: Data, found: Sequence[RemoteFile], manifest: Path) -> Sequence[RemoteFile]:
    sums = read_manifest(manifest)
    by_path = {file.relative: file for file in found}
    missing = sorted(set(sums) - set(by_path))
    if missing:
        message = f"dataset {dataset.name}: {dataset.source} lacks {missing[0]}, which {manifest.name} names"
        raise RecipeError(message, hint="upload it, or correct the manifest")
    # Only what the manifest vouches for is staged: an object that somebody added is not part of the dataset.
    return [replace(by_path[path], sha256=digest) for path, digest in sums.items()]
