"""The storage of a cluster as stored in its record. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # A command that reads records must not pay for the recipe schema.
    from cloudgpu.recipe.schema import Recipe
    from cloudgpu.recipe.storage import Storage

_LONGEST = 30
"""Of a recipe's name for storage, in a name of at most 39 characters that ends with eight of the cluster's own."""


@dataclass(frozen=True)
class AttachedStorage:
    """Storage that a cluster's nodes mount.

    Attributes:
        name: Name in `cloudgpu storage`.
        called: Name in the recipe.
        zone: Zone, for kinds that are in one.
        ends: True if it is deleted with the cluster: disposable storage and, until the cluster is running, everything
            created for it.
        id: ID of the file system, volume or bucket; empty until known.
    """

    name: str
    called: str
    kind: str
    region: str
    zone: str
    to: str
    mode: str
    ends: bool
    id: str = ""


def own_name(storage: Storage, token: str) -> str:
    """Return the name of a recipe's storage. Storage deleted with its cluster has a unique name."""
    if storage.make is None or storage.keep:
        return storage.name
    return f"{storage.name[:_LONGEST].rstrip('-')}-{hashlib.sha256(token.encode()).hexdigest()[:8]}"


def lacking(recipe: Recipe, storage: tuple[AttachedStorage, ...]) -> list[str]:
    """Return the recipe's mounts that a cluster lacks or mounts differently."""
    there = {(mounted.called, mounted.to, mounted.mode) for mounted in storage}
    return [storage.name for storage in recipe.storage if (storage.name, str(storage.to), storage.mode) not in there]
