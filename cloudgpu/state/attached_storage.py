"""A cluster's storage, as stored in the cluster's record."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Importing the recipe schema would slow down commands that only read records.
    from cloudgpu.recipe.schema import Recipe
    from cloudgpu.recipe.sections.storage import Storage

_LONGEST = 30
"""Maximum length of the recipe's storage name in a generated name, which also has a dash and an 8-character hash."""


@dataclass(frozen=True)
class AttachedStorage:
    """Storage that a cluster's nodes mount.

    Attributes:
        name: Name of the storage in `cloudgpu storage`.
        called: Name of the storage in the recipe.
        zone: Availability zone; empty for kinds of storage that are not zonal.
        to: Path at which the nodes mount the storage.
        ends: Whether the storage is deleted with the cluster. True for disposable storage and, until the cluster is
            running, for all storage created for the cluster.
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


def unique_name(storage: Storage, token: str) -> str:
    """Return the name to use for a recipe's storage.

    Storage that is deleted with its cluster gets a unique name, derived from its name in the recipe and the cluster's
    token. All other storage keeps its name in the recipe.
    """
    if storage.make is None or storage.keep:
        return storage.name
    return f"{storage.name[:_LONGEST].rstrip('-')}-{hashlib.sha256(token.encode()).hexdigest()[:8]}"


def missing_storage(recipe: Recipe, storage: tuple[AttachedStorage, ...]) -> list[str]:
    """Return the names of the recipe's storage that is not in `storage` with the same mount path and mode."""
    mounts = {(mounted.called, mounted.to, mounted.mode) for mounted in storage}
    return [storage.name for storage in recipe.storage if (storage.name, str(storage.to), storage.mode) not in mounts]
