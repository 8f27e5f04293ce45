"""Validation rules for the `storage` section."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from cloudgpu.bounds import MAX_VOLUME_GIB
from cloudgpu.recipe.problem import FieldPath, Problem
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.sections.storage import Make
from cloudgpu.recipe.storage_kinds import LUSTRE_STEP_GIB, SMALLEST_LUSTRE_GIB, is_lustre_size

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
