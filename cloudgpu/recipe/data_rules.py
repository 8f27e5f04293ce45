"""Rules of `data`, `checkpoint` and `outputs_to`: places apart, and ways of bringing data that exist."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from cloudgpu.recipe.data import Data
from cloudgpu.recipe.problem import FieldPath, Problem
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.sources import COPIED, MOUNTED, Source, source_of
from cloudgpu.recipe.storage_rules import overlap, system_place

_PROGRAMS: Final = frozenset({"bin", "boot", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "usr"})
"""Folders in which a copy would become part of the node's system."""
_S3: Final = "s3://"
_OSS_KEYS: Final = ("ram_role", "passwd_file", "public_bucket")
_OF_COPIES: Final = (
    ("manifest", "only a copy is verified: expected mode copy"),
    ("sha256", "only a copy is verified: expected mode copy"),
    ("share", "what is mounted is shared already: leave it out"),
    ("keep", "a mount ends with its run: leave it out"),
)
_OF_MOUNTS: Final = tuple(
    (name, "only for what is mounted: expected mode mount") for name in ("writable", "endpoint", "options")
)
"""Options of the other mode, and what to say of each."""


def datasets_apart(recipe: Recipe) -> Iterator[Problem]:
    """Every dataset has a name and a place of its own."""
    names: set[str] = set()
    places: dict[PurePosixPath, str] = {}
    for index, data in enumerate(recipe.data):
        where: FieldPath = ("data", index, "to")
        if data.name in names:
            yield Problem(("data", index, "name"), f"another dataset is called {data.name}")
        if not data.to.is_absolute() or ".." in data.to.parts:
            yield Problem(where, f"expected an absolute directory, for instance /data/x, got {data.to}")
        elif _of_the_system(data):
            yield Problem(where, f"{data.to} belongs to the node's own system; expected a place like /data/x")
        else:
            for place, other in places.items():
                if place == data.to:
                    yield Problem(where, f"another dataset goes to {data.to}: {other}")
                elif overlap(place, data.to):
                    yield Problem(where, f"{data.to} and {place} of dataset {other} lie in one another")
            places.setdefault(data.to, data.name)
        names.add(data.name)


def data_brought_well(recipe: Recipe) -> Iterator[Problem]:
    """What is to be mounted can be, what is to be copied can be, and no option is left without a meaning."""
    for index, data in enumerate(recipe.data):
        path: FieldPath = ("data", index)
        try:
            source = source_of(data.source)
        except ValueError as err:
            yield Problem((*path, "from"), str(err))
            continue
        yield from _way(data, source, path)
        for name, why in _idle(data, source):
            yield Problem((*path, name), why)


def checkpoint_in_s3(recipe: Recipe) -> Iterator[Problem]:
    """A checkpoint goes to S3, where the nodes' role can write without the caller."""
    if recipe.checkpoint and recipe.checkpoint.to is not None:
        yield from _written_to(recipe.checkpoint.to, ("checkpoint", "to"))


def outputs_in_s3(recipe: Recipe) -> Iterator[Problem]:
    """Outputs go to S3 as checkpoints do, and there are some."""
    if recipe.outputs_to is None:
        return
    yield from _written_to(recipe.outputs_to, ("outputs_to",))
    if not recipe.outputs:
        yield Problem(("outputs_to",), "expected outputs: nothing is named that could go there")


def _written_to(to: str, path: FieldPath) -> Iterator[Problem]:
    bucket = to.removeprefix(_S3).partition("/")[0]
    if not to.startswith(_S3) or "{" in bucket:
        yield Problem(path, f"expected an address in S3, for instance {_S3}bucket/runs/{{run}}")
        return
    if re.search(r"[{}]", to.replace("{run}", "")):
        yield Problem(path, "expected no placeholder but {run}")
    try:
        source_of(to)
    except ValueError as err:
        yield Problem(path, str(err))


def _of_the_system(data: Data) -> bool:
    """A mount hides what was there, so it stays out of more folders than a copy does."""
    if data.mode == "mount" or len(data.to.parts) <= len(("/", "data")):
        return data.to.parts[1:] == () or data.to.parts[1] in _PROGRAMS or system_place(data.to)
    return data.to.parts[1] in _PROGRAMS or (data.to.parts[1] == "home" and system_place(data.to))


def _way(data: Data, source: Source, path: FieldPath) -> Iterator[Problem]:
    if data.mode == "mount" and source.kind in COPIED:
        what = "a file that is fetched" if source.kind == "https" else "a path of this machine"
        yield Problem((*path, "mode"), f"{data.source} is {what}: expected copy")
    if data.mode == "copy" and source.kind in MOUNTED:
        yield Problem((*path, "mode"), f"{source.kind}:// is mounted: expected mount")
    if data.mode == "mount" and source.kind == "oss":
        yield from _oss(data, path)
    if data.mode == "copy" and source.kind == "https":
        yield from _fetched(data, path)


def _oss(data: Data, path: FieldPath) -> Iterator[Problem]:
    if not data.endpoint:
        yield Problem((*path, "endpoint"), "expected one, for instance https://oss-cn-hangzhou-internal.aliyuncs.com")
    if not any(f"{one}=" in data.options for one in _OSS_KEYS):
        role = "ram_role=http://100.100.100.200/latest/meta-data/ram/security-credentials/ROLE"
        yield Problem((*path, "options"), f"expected what opens the bucket, for instance {role}")


def _fetched(data: Data, path: FieldPath) -> Iterator[Problem]:
    if data.source.endswith("/") and data.manifest is None:
        yield Problem((*path, "manifest"), f"nobody can list {data.source}: expected a manifest that names its files")
    if data.source.lower().startswith("http://") and not (data.sha256 or data.manifest):
        yield Problem((*path, "from"), "http:// may bring anybody's file: give sha256 or a manifest, or write https://")
    if "?" in data.source or "#" in data.source:
        message = "expected an address without a query: what is signed does not belong in a recipe"
        yield Problem((*path, "from"), message)


def _idle(data: Data, source: Source) -> Iterator[tuple[str, str]]:
    """Options that would be read and mean nothing."""
    rules = _OF_COPIES if data.mode == "mount" else _OF_MOUNTS
    yield from ((name, why) for name, why in rules if getattr(data, name) != Data.model_fields[name].default)
    if data.manifest and data.sha256:
        yield "sha256", "the manifest holds the checksums: give one of both"
    if data.endpoint and data.mode == "mount" and source.kind not in ("s3", "oss"):
        yield "endpoint", "only for a bucket"
