"""Rules of the `storage` section: where it may be mounted, and what may be made."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from cloudgpu.bounds import MAX_VOLUME_GIB
from cloudgpu.recipe.problem import FieldPath, Problem
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.storage import Make

SMALLEST_LUSTRE_GIB: Final = 1200
LUSTRE_STEP_GIB: Final = 2400
_OF_THE_SYSTEM: Final = frozenset(
    {"bin", "boot", "dev", "etc", "lib", "lib64", "proc", "root", "run", "sbin", "sys", "tmp", "usr", "var"}
)
"""First folders of a path that a mount would take from the node itself."""
_A_HOME: Final = 3
"""Parts of `/home/ubuntu`, which holds the key that the node is reached with."""
_OWN_DISKS: Final = PurePosixPath("/mnt/cloudgpu")
_MOST_WITH_A_GROUP: Final = 4
"""A network interface carries five security groups, and one of them is the cluster's."""
_FOREIGN: Final = {
    "efs": ("size", "deployment", "linked", "snapshot"),
    "s3": ("size", "deployment", "linked", "snapshot"),
    "ebs": ("deployment", "linked"),
    "lustre": ("snapshot",),
}


def storage_mountable(recipe: Recipe) -> Iterator[Problem]:
    """Every mount has a place of its own, inside of nothing else."""
    taken = [("the node's own disks", _OWN_DISKS), *((f"dataset {one.name}", one.to) for one in recipe.data)]
    names: set[str] = set()
    for index, one in enumerate(recipe.storage):
        where: FieldPath = ("storage", index, "to")
        if one.name in names:
            yield Problem(("storage", index, "name"), f"another storage is called {one.name}")
        if not one.to.is_absolute() or ".." in one.to.parts or one.to == PurePosixPath("/"):
            yield Problem(where, f"expected an absolute directory, for instance /data/x, got {one.to}")
        elif system_place(one.to):
            yield Problem(where, f"{one.to} belongs to the node's own system; expected a place like /data/x")
        for other, place in taken:
            if one.to.parts[1:] and overlap(one.to, place):
                yield Problem(where, f"{one.to} and {place} of {other} lie in one another; expected places apart")
        names.add(one.name)
        taken.append((f"storage {one.name}", one.to))
    if len(recipe.storage) > _MOST_WITH_A_GROUP:
        message = f"expected at most {_MOST_WITH_A_GROUP}, since a node can carry the keys of no more"
        yield Problem(("storage",), message)


def storage_made_well(recipe: Recipe) -> Iterator[Problem]:
    """What is to be made is something that AWS makes."""
    for index, one in enumerate(recipe.storage):
        if one.make is None:
            if not one.keep:
                message = "only what is made with the cluster can end with it; give `make`, or leave `keep` out"
                yield Problem(("storage", index, "keep"), message)
            continue
        yield from _made(one.make, ("storage", index, "make"))
        if one.make.kind == "ebs" and recipe.resources.nodes > 1:
            message = f"a disk is for one node, and there are {recipe.resources.nodes}; expected efs, lustre or s3"
            yield Problem(("storage", index, "make", "kind"), message)


def _made(make: Make, path: FieldPath) -> Iterator[Problem]:
    for name in _FOREIGN[make.kind]:
        if getattr(make, name) is not None:
            yield Problem((*path, name), f"makes no sense for {make.kind}")
    size = int(make.size or 0)
    if make.kind == "lustre" and not (size == SMALLEST_LUSTRE_GIB or (size and size % LUSTRE_STEP_GIB == 0)):
        message = f"Lustre comes as {SMALLEST_LUSTRE_GIB}GiB or as a multiple of {LUSTRE_STEP_GIB}GiB"
        yield Problem((*path, "size"), message)
    if make.kind == "ebs" and size > MAX_VOLUME_GIB:
        yield Problem((*path, "size"), f"a gp3 volume has at most {MAX_VOLUME_GIB}GiB")
    if make.kind == "ebs" and not size and make.snapshot is None:
        yield Problem((*path, "size"), "expected the size of the disk, or the snapshot that it is made of")


def system_place(place: PurePosixPath) -> bool:
    """Whether a mount at this absolute place would take something of its own from the node."""
    if len(place.parts) < len(("/", "data")):
        return True
    return place.parts[1] in _OF_THE_SYSTEM or (place.parts[1] == "home" and len(place.parts) <= _A_HOME)


def overlap(one: PurePosixPath, other: PurePosixPath) -> bool:
    """Whether one of two places is the other, or lies in it."""
    shorter = min(len(one.parts), len(other.parts))
    return one.parts[:shorter] == other.parts[:shorter]
