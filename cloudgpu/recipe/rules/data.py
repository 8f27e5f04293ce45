"""Validation rules for `data`, `checkpoint` and `outputs_to`."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from cloudgpu.recipe.problem import FieldPath, Problem
from cloudgpu.recipe.rules.storage import is_system_path, paths_overlap
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.sections.data import Data
from cloudgpu.recipe.sources import COPIED, MOUNTED, Source, source_of

_SYSTEM_DIRECTORIES: Final = frozenset(
    {"bin", "boot", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "usr"}
)
"""Top-level directories of the operating system, which must not contain copied data."""
_S3: Final = "s3://"
_OSS_KEYS: Final = ("ram_role", "passwd_file", "public_bucket")
_COPY_FIELDS: Final = (
    ("manifest", "mounted data is not verified; remove this field, or use mode: copy"),
    ("sha256", "mounted data is not verified; remove this field, or use mode: copy"),
    ("share", "mounted data is always shared; remove this field"),
    ("keep", "a mount is always removed when its run ends; remove this field"),
)
_MOUNT_FIELDS: Final = tuple(
    (name, "applies only to mounted data; remove this field, or use mode: mount")
    for name in ("writable", "endpoint", "options")
)
"""Fields that apply to only one mode, each with the message for the other mode."""


def dataset_target_problems(recipe: Recipe) -> Iterator[Problem]:
    """Require every dataset to have a unique name and a separate directory."""
    names: set[str] = set()
    directories: dict[PurePosixPath, str] = {}
    for index, data in enumerate(recipe.data):
        path: FieldPath = ("data", index, "to")
        if data.name in names:
            yield Problem(("data", index, "name"), f"another dataset is already named {data.name}")
        if not data.to.is_absolute() or ".." in data.to.parts:
            yield Problem(path, f"expected an absolute directory, for example /data/x, got {data.to}")
        elif _is_system_target(data):
            yield Problem(path, f"{data.to} belongs to the node's operating system; use a directory like /data/x")
        else:
            for directory, other in directories.items():
                if directory == data.to:
                    yield Problem(path, f"dataset {other} already uses {data.to}")
                elif paths_overlap(directory, data.to):
                    yield Problem(path, f"{data.to} overlaps {directory} of dataset {other}; use separate directories")
            directories.setdefault(data.to, data.name)
        names.add(data.name)


def data_source_problems(recipe: Recipe) -> Iterator[Problem]:
    """Require every source to support its mode, and reject fields that would have no effect."""
    for index, data in enumerate(recipe.data):
        path: FieldPath = ("data", index)
        try:
            source = source_of(data.source)
        except ValueError as err:
            yield Problem((*path, "from"), str(err))
            continue
        yield from _mode_problems(data, source, path)
        for name, why in _fields_without_effect(data, source):
            yield Problem((*path, name), why)


def checkpoint_target_problems(recipe: Recipe) -> Iterator[Problem]:
    """Require `checkpoint.to` to be an S3 URL, to which nodes can write with their IAM role."""
    if recipe.checkpoint and recipe.checkpoint.to is not None:
        yield from _s3_target_problems(recipe.checkpoint.to, ("checkpoint", "to"))


def outputs_target_problems(recipe: Recipe) -> Iterator[Problem]:
    """Require `outputs_to` to be an S3 URL, and `outputs` not to be empty."""
    if recipe.outputs_to is None:
        return
    yield from _s3_target_problems(recipe.outputs_to, ("outputs_to",))
    if not recipe.outputs:
        yield Problem(("outputs_to",), "outputs is empty, so there is nothing to upload; list files in outputs")


def _s3_target_problems(to: str, path: FieldPath) -> Iterator[Problem]:
    bucket = to.removeprefix(_S3).partition("/")[0]
    if not to.startswith(_S3) or "{" in bucket:
        yield Problem(path, f"expected an S3 URL, for example {_S3}bucket/runs/{{run}}")
        return
    if re.search(r"[{}]", to.replace("{run}", "")):
        yield Problem(path, "the only placeholder allowed here is {run}")
    try:
        source_of(to)
    except ValueError as err:
        yield Problem(path, str(err))


def _is_system_target(data: Data) -> bool:
    """Return True if the dataset would overwrite or hide system files. A mount hides more than a copy does."""
    if data.mode == "mount" or len(data.to.parts) <= len(("/", "data")):
        return data.to.parts[1:] == () or data.to.parts[1] in _SYSTEM_DIRECTORIES or is_system_path(data.to)
    return data.to.parts[1] in _SYSTEM_DIRECTORIES or (data.to.parts[1] == "home" and is_system_path(data.to))


def _mode_problems(data: Data, source: Source, path: FieldPath) -> Iterator[Problem]:
    if data.mode == "mount" and source.kind in COPIED:
        what = "a download" if source.kind == "https" else "a local path"
        yield Problem((*path, "mode"), f"{data.source} is {what} and cannot be mounted; expected copy")
    if data.mode == "copy" and source.kind in MOUNTED:
        yield Problem((*path, "mode"), f"{source.kind}:// cannot be copied; expected mount")
    if data.mode == "mount" and source.kind == "oss":
        yield from _oss_problems(data, path)
    if data.mode == "copy" and source.kind == "https":
        yield from _download_problems(data, path)


def _oss_problems(data: Data, path: FieldPath) -> Iterator[Problem]:
    if not data.endpoint:
        yield Problem(
            (*path, "endpoint"), "required for oss://, for example https://oss-cn-hangzhou-internal.aliyuncs.com"
        )
    if not any(f"{key}=" in data.options for key in _OSS_KEYS):
        role = "ram_role=http://100.100.100.200/latest/meta-data/ram/security-credentials/ROLE"
        yield Problem((*path, "options"), f"oss:// needs credentials here, for example {role}")


def _download_problems(data: Data, path: FieldPath) -> Iterator[Problem]:
    if data.source.endswith("/") and data.manifest is None:
        yield Problem(
            (*path, "manifest"), f"{data.source} cannot be listed over HTTP; expected a manifest that lists its files"
        )
    if data.source.lower().startswith("http://") and not (data.sha256 or data.manifest):
        yield Problem((*path, "from"), "http:// is not authenticated; use https://, or add sha256 or a manifest")
    if "?" in data.source or "#" in data.source:
        message = "expected a URL without a query string or fragment, because signed URLs do not belong in a recipe"
        yield Problem((*path, "from"), message)


def _fields_without_effect(data: Data, source: Source) -> Iterator[tuple[str, str]]:
    """Yield the fields that have no effect in this mode, each with its message."""
    rules = _COPY_FIELDS if data.mode == "mount" else _MOUNT_FIELDS
    yield from ((name, why) for name, why in rules if getattr(data, name) != Data.model_fields[name].default)
    if data.manifest and data.sha256:
        yield "sha256", "the manifest already contains the checksums; set either manifest or sha256"
    if data.endpoint and data.mode == "mount" and source.kind not in ("s3", "oss"):
        yield "endpoint", "applies only to buckets (s3:// and oss://)"
