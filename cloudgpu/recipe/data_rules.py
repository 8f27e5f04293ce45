"""Validation rules for datasets, checkpoints, outputs and storage."""

import json
import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Final

from cloudgpu.bounds import MAX_VOLUME_GIB
from cloudgpu.recipe.problem import FieldPath, Problem
from cloudgpu.recipe.schema import Data, Make, Recipe, rule
from cloudgpu.recipe.sources import (
    COPIED,
    LUSTRE_STEP_GIB,
    MOUNTED,
    SMALLEST_LUSTRE_GIB,
    Source,
    is_lustre_size,
    source_of,
)

_MAX_NAME_BYTES: Final = 255
"""Maximum length of a path component on every file system that nodes use."""
_MAX_PATH_BYTES: Final = 3000
"""Maximum length of a path below the target directory. Linux allows 4095 bytes for the whole path."""
_DOWNLOAD_SUFFIXES: Final = (".part", ".part.map")
"""Suffixes of a partially downloaded file and of the file that records its progress."""
_SYSTEM_DIRECTORIES: Final = frozenset(
    {"bin", "boot", "dev", "etc", "lib", "lib64", "proc", "root", "run", "sbin", "sys", "tmp", "usr", "var"}
)
"""Top-level directories that a mount must not hide from the node."""
_HOME_PARTS: Final = 3
"""Number of path components of `/home/ubuntu`, which contains the SSH key that gives access to the node."""
_LOCAL_DISKS: Final = PurePosixPath("/mnt/cloudgpu")
_MAX_STORAGES: Final = 4
"""Maximum number of mounts: a network interface can have five security groups, one of which is the cluster's."""
_UNSUPPORTED_FIELDS: Final = {
    "efs": ("size", "deployment", "linked", "snapshot"),
    "s3": ("size", "deployment", "linked", "snapshot"),
    "ebs": ("deployment", "linked"),
    "lustre": ("snapshot",),
}
_PROGRAM_DIRECTORIES: Final = frozenset(
    {"bin", "boot", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "usr"}
)
"""Top-level directories of the operating system, which must not contain copied data."""
_S3: Final = "s3://"
_POLICY_CHARS: Final = 9_500
"""IAM's limit of 10,240 characters for the policies of a role, less the permissions that every cluster has."""
_READ_TIMES: Final = 3
"""How often a policy contains a location to read: as an object, as the directory of objects, and for listing."""
_WRITE_TIMES: Final = 2
_ARN_CHARS: Final = 12
"""Characters that an ARN with separators has in addition to a quoted URL."""
_ESCAPE_CHARS: Final = 3
"""Additional characters of an escaped `$`."""
_STATEMENT_CHARS: Final = 110
"""Characters of the statement that allows listing a bucket."""
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


def find_unusable_name(names: Iterable[str]) -> tuple[str, str] | None:
    """Return the first file name that a node cannot create, with the reason; None if all names are valid."""
    all_names = set(names)
    folders: dict[str, bool] = {}
    for name in sorted(all_names):
        reason = _invalid_name(name) or _clash(name, all_names, folders)
        if reason:
            return name, reason
    return None


def _invalid_name(name: str) -> str:
    if name in ("", ".") or name.startswith("/") or posixpath.normpath(name) != name or ".." in name.split("/"):
        return "the path leaves the dataset's directory or is not normalized"
    if any(ord(char) < ord(" ") or char == "\x7f" for char in name):
        return "the name contains a control character"
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) > _MAX_PATH_BYTES or any(len(part) > _MAX_NAME_BYTES for part in encoded.split(b"/")):
        return "the name is longer than file systems allow"
    return ""


def _clash(name: str, all_names: set[str], folders: dict[str, bool]) -> str:
    taken = next((other for other in (name + suffix for suffix in _DOWNLOAD_SUFFIXES) if other in all_names), None)
    if taken:
        return f"{taken} is also in the dataset, but the download uses this name for a temporary file"
    folder = posixpath.dirname(name)
    if folder not in folders:
        folders[folder] = any(parent in all_names for parent in _parents(folder))
    return "its directory has the same name as another file" if folders[folder] else ""


def _parents(folder: str) -> Iterable[str]:
    while folder:
        yield folder
        folder = posixpath.dirname(folder)


@rule("storage", "data")
def storage_mount_problems(recipe: Recipe) -> Iterator[Problem]:
    """Require every mount to have a unique name and a separate directory."""
    taken = [
        ("the node's local disks", _LOCAL_DISKS),
        *((f"dataset {data.name}", data.to) for data in recipe.data),
    ]
    names: set[str] = set()
    for index, storage in enumerate(recipe.storage):
        path: FieldPath = ("storage", index, "to")
        if storage.name in names:
            yield Problem(("storage", index, "name"), f"another entry is already named {storage.name}")
        if not storage.to.is_absolute() or ".." in storage.to.parts or storage.to == PurePosixPath("/"):
            yield Problem(path, f"expected an absolute directory, for example /data/x, got {storage.to}")
        elif is_system_path(storage.to):
            yield Problem(path, f"{storage.to} belongs to the node's operating system; use a directory like /data/x")
        for other, place in taken:
            if storage.to.parts[1:] and paths_overlap(storage.to, place):
                yield Problem(path, f"{storage.to} overlaps {place} of {other}; use separate directories")
        names.add(storage.name)
        taken.append((f"storage {storage.name}", storage.to))
    if len(recipe.storage) > _MAX_STORAGES:
        message = f"expected at most {_MAX_STORAGES} entries, because a node can have only five security groups"
        yield Problem(("storage",), message)


@rule("storage", "resources")
def storage_make_problems(recipe: Recipe) -> Iterator[Problem]:
    """Require `make` to describe storage that AWS can create."""
    for index, storage in enumerate(recipe.storage):
        if storage.make is None:
            if not storage.keep:
                message = "only storage created with the cluster can be deleted with it; add make, or remove keep"
                yield Problem(("storage", index, "keep"), message)
            continue
        yield from _make_problems(storage.make, ("storage", index, "make"))
        if storage.make.kind == "ebs" and recipe.resources.nodes > 1:
            message = f"ebs works with one node, not {recipe.resources.nodes}; expected efs, lustre or s3"
            yield Problem(("storage", index, "make", "kind"), message)


def _make_problems(make: Make, path: FieldPath) -> Iterator[Problem]:
    for name in _UNSUPPORTED_FIELDS[make.kind]:
        if getattr(make, name) is not None:
            yield Problem((*path, name), f"not supported for {make.kind}")
    size = int(make.size or 0)
    if make.kind == "lustre" and not is_lustre_size(size):
        message = f"expected {SMALLEST_LUSTRE_GIB}GiB or a multiple of {LUSTRE_STEP_GIB}GiB for Lustre"
        yield Problem((*path, "size"), message)
    if make.kind == "ebs" and size > MAX_VOLUME_GIB:
        yield Problem((*path, "size"), f"expected at most {MAX_VOLUME_GIB}GiB, the largest gp3 volume")
    if make.kind == "ebs" and not size and make.snapshot is None:
        yield Problem((*path, "size"), "required for ebs, unless snapshot is set")


def is_system_path(place: PurePosixPath) -> bool:
    """Return True if a mount at this absolute path would hide part of the node's operating system."""
    if len(place.parts) < len(("/", "data")):
        return True
    return place.parts[1] in _SYSTEM_DIRECTORIES or (place.parts[1] == "home" and len(place.parts) <= _HOME_PARTS)


def paths_overlap(first: PurePosixPath, second: PurePosixPath) -> bool:
    """Return True if one path equals or contains the other."""
    shorter = min(len(first.parts), len(second.parts))
    return first.parts[:shorter] == second.parts[:shorter]


@rule("data")
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


@rule("data")
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


@rule("checkpoint")
def checkpoint_target_problems(recipe: Recipe) -> Iterator[Problem]:
    """Require `checkpoint.to` to be an S3 URL, to which nodes can write with their IAM role, and `resume` likewise."""
    if recipe.checkpoint and recipe.checkpoint.to is not None:
        yield from _s3_target_problems(recipe.checkpoint.to, ("checkpoint", "to"))
    if recipe.checkpoint and recipe.checkpoint.resume is not None:
        yield from _url_problems(recipe.checkpoint.resume, ("checkpoint", "resume"))


@rule("outputs_to", "outputs")
def outputs_target_problems(recipe: Recipe) -> Iterator[Problem]:
    """Require `outputs_to` to be an S3 URL, and `outputs` not to be empty."""
    if recipe.outputs_to is None:
        return
    yield from _s3_target_problems(recipe.outputs_to, ("outputs_to",))
    if not recipe.outputs:
        yield Problem(("outputs_to",), "outputs is empty, so there is nothing to upload; list files in outputs")


@rule("data", "checkpoint", "outputs_to")
def role_size_problems(recipe: Recipe) -> Iterator[Problem]:
    """Reject more S3 URLs than fit into the policy of the nodes' role, which AWS would reject during the launch."""
    read: dict[FieldPath, Data] = {
        ("data", index, "from"): data for index, data in enumerate(recipe.data) if data.endpoint is None
    }
    targets: dict[FieldPath, str | None] = {
        ("checkpoint", "to"): recipe.checkpoint.to if recipe.checkpoint else None,
        ("outputs_to",): recipe.outputs_to,
    }
    sizes = [(path, _policy_chars(data.source, reads=True, writes=data.writable)) for path, data in read.items()]
    sizes += [(path, _policy_chars(to, reads=False, writes=True)) for path, to in targets.items() if to]
    total = 0
    for path, size in sizes:
        total += size
        if total > _POLICY_CHARS:
            message = (
                f"the S3 URLs of the recipe up to this one need about {total:,} characters in the policy of the nodes' "
                f"role, and IAM leaves {_POLICY_CHARS:,} for them; use fewer or shorter URLs"
            )
            yield Problem(path, message)
            return


def _policy_chars(url: str, *, reads: bool, writes: bool) -> int:
    """Return the most characters that an S3 URL needs in the policy of the nodes' role; 0 for other URLs."""
    if not url.lower().startswith(_S3):
        return 0
    times = _READ_TIMES * reads + _WRITE_TIMES * writes
    return _STATEMENT_CHARS + times * (len(json.dumps(url)) + _ESCAPE_CHARS * url.count("$") + _ARN_CHARS)


def _s3_target_problems(to: str, path: FieldPath) -> Iterator[Problem]:
    bucket = to.removeprefix(_S3).partition("/")[0]
    if not to.startswith(_S3) or "{" in bucket:
        yield Problem(path, f"expected an S3 URL, for example {_S3}bucket/runs/{{run}}")
        return
    if re.search(r"[{}]", to.replace("{run}", "")):
        yield Problem(path, "the only placeholder allowed here is {run}")
    yield from _url_problems(to, path)


def _url_problems(url: str, path: FieldPath) -> Iterator[Problem]:
    try:
        source_of(url)
    except ValueError as err:
        yield Problem(path, str(err))


def _is_system_target(data: Data) -> bool:
    """Return True if the dataset would overwrite or hide system files. A mount hides more than a copy does."""
    if data.mode == "mount" or len(data.to.parts) <= len(("/", "data")):
        return data.to.parts[1:] == () or data.to.parts[1] in _PROGRAM_DIRECTORIES or is_system_path(data.to)
    return data.to.parts[1] in _PROGRAM_DIRECTORIES or (data.to.parts[1] == "home" and is_system_path(data.to))


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
